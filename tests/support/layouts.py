"""Layouts and inputs for tests of attention; drawn_layouts.py draws random layouts and patterns."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels import Backend
from bandrank_kernels.windowed_attention import PackedRows

CPU = torch.device("cpu")
BACKENDS: list[Backend] = ["reference", "vectorized"]
NUM_HEADS, HEAD_DIM = 2, 4
# Bounds how far two sums of 1,000 terms in float64 differ by their order; values and outputs are of the order of 1.
EXACT = 1e-10


def packed_rows(
    query_lengths: Sequence[int], candidate_lengths: Sequence[Sequence[int]], *, shared: bool
) -> PackedRows:
    """The layout of queries with their candidates: candidate_lengths[q] are those of query q.

    shared: one copy of each query; otherwise each candidate has a copy, and a query without candidates has none.
    """
    owner = np.array([query for query, group in enumerate(candidate_lengths) for _ in group], np.int64)
    lengths = np.array(query_lengths, np.int64)
    flat = [length for group in candidate_lengths for length in group]
    if not shared:
        lengths, owner = lengths[owner], np.arange(len(owner))
    return PackedRows(_offsets(lengths), _offsets(np.array(flat, np.int64)), owner)


def _offsets(
    lengths: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def random_qkv(rows: PackedRows, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random queries, keys and values with an uneven softmax, (num_rows, 3, NUM_HEADS, HEAD_DIM)."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(rows.num_rows, 3, NUM_HEADS, HEAD_DIM, dtype=dtype, generator=generator)
