"""Arrays in host memory that describe runs of rows; plans made from them never wait for a device."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Offsets = Ints  # (n + 1,), ascending from 0


def offsets(lengths: Sequence[int] | Ints) -> Offsets:
    """(n + 1,) where each of n runs of the given lengths starts, and where the last one ends."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=ends[1:])
    return ends


def lengths_of(cu_seqlens: Offsets) -> Ints:
    """(n,) the lengths of the n runs whose offsets are `cu_seqlens`."""
    return cu_seqlens[1:] - cu_seqlens[:-1]


def ranges(starts: Ints | int, lengths: Ints) -> Ints:
    """(sum of lengths,) start, start + 1, .. start + length - 1 for each start and its length, end to end."""
    ends = lengths.cumsum()
    found: Ints = (starts + lengths - ends).repeat(lengths)
    found += np.arange(len(found))
    return found


def indices_within(lengths: Ints) -> Ints:
    """0, 1, .. length - 1 for each length, end to end."""
    return ranges(0, lengths)
