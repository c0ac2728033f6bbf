"""The word pieces of texts as lexical evidence keeps them: beside a text's representation, in a few hundred bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from bandrank_kernels.arrays import Ints

PIECES = 1 << 16  # as many as two bytes tell apart; in larger vocabularies a few pieces share each value
PIECE_BYTES, WEIGHT_BYTES = 2, 1
MAX_WEIGHT = 255  # a weight of 1


@dataclass(frozen=True)
class Words:
    """Some word pieces of n texts, each with a weight.

    pieces: (n, size) uint16, token ids modulo `PIECES`.  weights: (n, size) uint8, in 255ths; 0 where a text has fewer
    pieces. Raises ValueError if the shapes differ.
    """

    pieces: npt.NDArray[np.uint16]
    weights: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.pieces.shape != self.weights.shape or self.pieces.ndim != 2:
            raise ValueError(f"pieces are {self.pieces.shape} and weights {self.weights.shape}")

    def __len__(self) -> int:
        return len(self.pieces)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The words of all parts, in their order."""
        return cls(np.concatenate([part.pieces for part in parts]), np.concatenate([part.weights for part in parts]))

    def part(self, texts: slice | Ints) -> Self:
        """The words of some texts."""
        return type(self)(self.pieces[texts], self.weights[texts])

    @staticmethod
    def num_bytes(size: int) -> int:
        """The bytes of one text with `size` pieces."""
        return size * (PIECE_BYTES + WEIGHT_BYTES)

    def to_bytes(self) -> npt.NDArray[np.uint8]:
        """(n, num_bytes) pieces, little-endian, and then weights."""
        pieces = self.pieces.astype("<u2").view(np.uint8)
        return np.concatenate([pieces, self.weights], axis=1)

    @classmethod
    def from_bytes(cls, rows: npt.NDArray[np.uint8]) -> Self:
        """The inverse of `to_bytes`. rows: (n, num_bytes)."""
        size = rows.shape[1] // (PIECE_BYTES + WEIGHT_BYTES)
        return cls(rows[:, : size * PIECE_BYTES].copy().view("<u2"), rows[:, size * PIECE_BYTES :])
