"""Sequences of like length side by side, for what has no ragged form."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bandrank.models.ragged import Offsets

LENGTH_RATIO = 1.15  # longest over shortest sequence of a group: 7 % padding at most on average
LENGTH_SLACK = 8  # rows: below this, padding costs less than one more group


def like_lengths(cu_seqlens: Offsets, max_rows: int) -> Iterator[tuple[Offsets, Offsets, npt.NDArray[np.bool_]]]:
    """Groups of sequences, shortest first: their indices (n,), their rows' places (n, width), and which are real.

    A group has at most `max_rows` places, unless it is one sequence. What is not real points at the sequence's last
    row, or at row 0.
    """
    lengths = np.diff(cu_seqlens)
    order = np.argsort(lengths, kind="stable")
    begin = 0
    for end in range(1, len(order) + 1):
        shortest = lengths[order[begin]]
        if end < len(order):
            width = lengths[order[end]]
            fits = width <= max(shortest * LENGTH_RATIO, shortest + LENGTH_SLACK)
            if fits and (end - begin + 1) * width <= max_rows:
                continue
        chosen = order[begin:end]
        place = np.arange(lengths[chosen[-1]])
        real = place < lengths[chosen, None]
        rows = cu_seqlens[chosen, None] + np.minimum(place, lengths[chosen, None] - 1)
        yield chosen, rows.clip(min=0), real
        begin = end
