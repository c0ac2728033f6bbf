"""Arrays in host memory that describe runs of rows; plans made from them never wait for a device."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Offsets = Ints  # (n + 1,), ascending from 0


def offsets(lengths: Sequence[int] | Ints) -> Offsets:
    """(n + 1,) where each of n runs of the given lengths starts, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def indices_within(lengths: Ints) -> Ints:
    """0, 1, .. length - 1 for each length, end to end."""
    starts = offsets(lengths)
    return np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
