"""Sequences of like length side by side, for what has no ragged form."""

from collections.abc import Iterator

import numpy as np

from bandrank_kernels.arrays import Bools, Ints, Offsets
from bandrank_kernels.grouping import like_lengths


def padded_groups(cu_seqlens: Offsets, max_rows: int) -> Iterator[tuple[Ints, Ints, Bools]]:
    """Groups of `like_lengths`, shortest first: sequences (n,), their row numbers (n, width), and which rows are real.

    Padding repeats the sequence's last row, or is row 0.
    """
    lengths = np.diff(cu_seqlens)
    for chosen in like_lengths(lengths, max_rows):
        index = np.arange(lengths[chosen[-1]])
        rows = cu_seqlens[chosen, None] + np.minimum(index, lengths[chosen, None] - 1)
        yield chosen, rows.clip(min=0), index < lengths[chosen, None]
