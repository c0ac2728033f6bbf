"""Padded groups of sequences of similar length, for operations without a ragged form."""

from collections.abc import Iterator

import numpy as np

from bandrank_kernels.arrays import Bools, Ints, Offsets
from bandrank_kernels.grouping import like_lengths


def padded_groups(cu_seqlens: Offsets, max_rows: int) -> Iterator[tuple[Ints, Ints, Bools]]:
    """Groups by `like_lengths`, shortest first, each as indices of sequences (n,), of rows (n, width), and a mask
    (n, width) that is False for padding, which is the index of the sequence's last row, or 0.
    """
    lengths = np.diff(cu_seqlens)
    for chosen in like_lengths(lengths, max_rows):
        index = np.arange(lengths[chosen[-1]])
        rows = cu_seqlens[chosen, None] + np.minimum(index, lengths[chosen, None] - 1)
        yield chosen, rows.clip(min=0), index < lengths[chosen, None]
