"""The shape of a request, and the least bytes that attention moves for it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.arrays import offsets
from bandrank_kernels.windowed_attention import PackedRows

HALF = 2  # bytes per number
BANDWIDTH = 3.35e12  # bytes per second, an H100's on paper, so that floors do not vary from run to run


@dataclass(frozen=True)
class Shape:
    """Candidates of equal lengths. tokens, query_tokens: of a candidate and of the query, without [SEP].

    A sequence is [CLS] query [SEP] candidate [SEP].
    """

    tokens: int
    window: int
    head_dim: int
    num_heads: int = 12
    num_candidates: int = 100
    query_tokens: int = 10

    def __str__(self) -> str:
        return f"n={self.tokens} w={self.window} {self.num_heads}x{self.head_dim}"

    @property
    def num_globals(self) -> int:
        """[CLS], the query and its [SEP]: the keys that every candidate row sees."""
        return self.query_tokens + 2

    @property
    def candidate_rows(self) -> int:
        """Rows of one candidate, with its [SEP]."""
        return self.tokens + 1

    @property
    def sequence(self) -> int:
        """Rows of a whole pair."""
        return self.num_globals + self.candidate_rows

    @property
    def hidden(self) -> int:
        """Numbers per row."""
        return self.num_heads * self.head_dim

    def rows(self) -> PackedRows:
        """The packed layout."""
        lengths, owner = [self.candidate_rows] * self.num_candidates, np.zeros(self.num_candidates, np.int64)
        return PackedRows(offsets([self.num_globals - 1]), offsets(lengths), owner)

    @property
    def fused_bytes(self) -> int:
        """Bytes moved if each packed row of Q, K and V is read once, and each output written once."""
        return self.rows().num_rows * 4 * self.hidden * HALF

    @property
    def two_kernel_bytes(self) -> int:
        """Bytes moved by ideal separate kernels for band and globals: scores, one softmax, sums, and their sum."""
        band = (2 * self.window + 1) * self.num_heads
        seen = self.num_globals * self.num_heads
        numbers = (
            (2 * self.hidden + band)
            + (self.hidden + seen)
            + 2 * (band + seen)
            + (band + 2 * self.hidden)
            + (seen + self.hidden)
            + 3 * self.hidden
            + 4 * self.num_heads  # scores of [CLS] with the row: written, read by the softmax, written, read
        )
        return self.num_candidates * self.candidate_rows * numbers * HALF

    def sequences(self, qkv: Tensor) -> Tensor:
        """Unpacks rows into whole pairs, each with a copy of the query: (num_candidates, sequence, ...)."""
        count, shape = self.num_candidates, qkv.shape[1:]
        cls, query, candidates = torch.split(qkv, [count, self.num_globals - 1, count * self.candidate_rows])
        copies = query.expand(count, *query.shape)
        return torch.cat([cls[:, None], copies, candidates.view(count, self.candidate_rows, *shape)], 1)


class Passages(Shape):
    """Candidates of realistic lengths, of which `tokens` is more than the longest."""

    def __str__(self) -> str:
        return f"passages w={self.window} {self.num_heads}x{self.head_dim}"

    def rows(self) -> PackedRows:
        lengths, owner = passage_lengths(self.num_candidates), np.zeros(self.num_candidates, np.int64)
        return PackedRows(offsets([self.num_globals - 1]), offsets([length + 1 for length in lengths]), owner)


def passage_lengths(num_candidates: int, *, mean: float = 77, longest: int = 163) -> list[int]:
    """Realistic lengths of candidates in word pieces: gamma-distributed, with this mean and this maximum."""
    at = np.linspace(500, 99_499, num_candidates).astype(int)
    quantiles = np.sort(np.random.default_rng(0).gamma(6.0, size=100_000))[at]
    scale = mean
    for _ in range(20):  # clipping lowers the mean, the scale restores it
        lengths = np.clip(quantiles / quantiles.mean() * scale, 5, longest)
        scale *= mean / lengths.mean()
    lengths[-1] = longest
    return [int(length) for length in lengths.round()]


def floor_us(num_bytes: float, bandwidth: float = BANDWIDTH) -> float:
    """Microseconds in which memory can move this many bytes."""
    return num_bytes / bandwidth * 1e6
