"""Sequences of any length laid end to end: the data type that passes between the engine and models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bandrank.models.ids import Ids, RaggedIds
from bandrank.models.words import Words
from bandrank_kernels.arrays import Ints, Offsets, lengths_of, offsets, ranges


@dataclass(frozen=True)
class Ragged:
    """n sequences without padding; sequences may be empty.

    values: (total, ...), where sequence i is values[cu_seqlens[i] : cu_seqlens[i + 1]].  cu_seqlens: (n + 1,), always
    in host memory, so that planning a batch never waits for a device.  words: the words of the texts, for scorers that
    add lexical evidence.
    Raises ValueError if the offsets do not cover the values, or if the words are those of another number of texts.
    """

    values: Tensor
    cu_seqlens: Offsets
    words: Words | None = None

    def __post_init__(self) -> None:
        ends_fit = self.cu_seqlens[0] == 0 and self.cu_seqlens[-1] == len(self.values)
        if not ends_fit or self.lengths.min(initial=0) < 0:
            raise ValueError(f"cu_seqlens must ascend from 0 to {len(self.values)}, got {self.cu_seqlens}")
        if self.words is not None and len(self.words) != len(self):
            raise ValueError(f"words of {len(self.words)} texts beside {len(self)} sequences")

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Joins the sequences of one or more parts."""
        if len(parts) == 1:
            return parts[0]
        words = [part.words for part in parts if part.words is not None]
        return cls(
            torch.cat([part.values for part in parts]),
            offsets(np.concatenate([part.lengths for part in parts])),
            Words.joined(words) if words else None,
        )

    @classmethod
    def from_ids(cls, parts: Sequence[RaggedIds]) -> Self:
        """The token ids of all parts, as int64 in host memory."""
        ids = RaggedIds.joined(parts)
        return cls(torch.from_numpy(ids.values.astype(np.int64)), ids.cu_seqlens)

    @classmethod
    def from_token_ids(cls, sequences: Sequence[Sequence[int] | Ids]) -> Self:
        """Single sequences of token ids, as int64 in host memory."""
        return cls.from_ids([RaggedIds.of(sequences)])

    @classmethod
    def from_tensors(cls, sequences: Sequence[Tensor]) -> Self:
        """Concatenates sequences of equal trailing shape. Raises ValueError if there are none."""
        if not sequences:
            raise ValueError("no sequence to take dtype and shape from")
        return cls(torch.cat(list(sequences)), offsets([len(sequence) for sequence in sequences]))

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1

    def __getitem__(self, index: int) -> Tensor:
        return self.values[self.cu_seqlens[index] : self.cu_seqlens[index + 1]]

    def part(self, run: slice) -> Self:
        """The consecutive sequences `run.start` .. `run.stop` - 1."""
        cu_seqlens = self.cu_seqlens[run.start : run.stop + 1]
        words = None if self.words is None else self.words.part(run)
        return type(self)(self.values[cu_seqlens[0] : cu_seqlens[-1]], cu_seqlens - cu_seqlens[0], words)

    def take(self, indices: Ints) -> Self:
        """The sequences at these indices, in the order of the indices."""
        lengths = self.lengths[indices]
        rows = ranges(self.cu_seqlens[indices], lengths)
        words = None if self.words is None else self.words.part(indices)
        return type(self)(self.values[torch.from_numpy(rows)], offsets(lengths), words)

    def chained(self, order: Ints) -> Self:
        """One sequence for each row of indices: the sequences at these, one behind the other. order: (n, k)."""
        parts = self.take(order.ravel())
        return type(self)(parts.values, parts.cu_seqlens[:: order.shape[1]])

    @cached_property
    def lengths(self) -> Ints:
        """(n,) the length of each sequence."""
        return lengths_of(self.cu_seqlens)

    @property
    def max_seqlen(self) -> int:
        """The length of the longest sequence; 0 if there are none."""
        return int(self.lengths.max(initial=0))

    def to(self, device: torch.device) -> Self:
        """The same sequences on `device`; the copy does not block if the values are pinned."""
        return replace(self, values=self.values.to(device, non_blocking=True))
