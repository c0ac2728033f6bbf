"""Cuts sequences and other items into groups that are computed together, each within a budget or a single item."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from bandrank_kernels.arrays import Ints

LENGTH_RATIO = 1.15  # longest over shortest sequence of a group: 7 % padding at most on average
LENGTH_SLACK = 8  # rows: below this, padding costs less than one more group


def runs_within(costs: Sequence[float], budget: float, *, max_items: float = math.inf) -> Iterator[slice]:
    """Cuts items into runs of at most `max_items`, whose costs add up to at most `budget` unless a single item costs
    more.
    """
    begin, spent = 0, 0.0
    for index, cost in enumerate(costs):
        if index > begin and (spent + cost > budget or index - begin >= max_items):
            yield slice(begin, index)
            begin, spent = index, 0.0
        spent += cost
    if costs:
        yield slice(begin, len(costs))


def padded_runs(lengths: Sequence[int], max_rows: int, *, alike: bool = False) -> Iterator[slice]:
    """Cuts sequences into runs of at most `max_rows` rows when padded to their longest, or of one longer sequence.

    alike: the longest of a run is also at most LENGTH_RATIO times as long as the shortest, or LENGTH_SLACK rows longer.
    """
    begin = 0
    shortest = longest = lengths[0] if lengths else 0
    for index, length in enumerate(lengths):
        shortest, longest = min(shortest, length), max(longest, length)
        uneven = alike and longest > max(shortest * LENGTH_RATIO, shortest + LENGTH_SLACK)
        if index > begin and (uneven or longest * (index - begin + 1) > max_rows):
            yield slice(begin, index)
            begin, shortest, longest = index, length, length
    if lengths:
        yield slice(begin, len(lengths))


def like_lengths(lengths: Ints, max_rows: int) -> Iterator[Ints]:
    """Indices of sequences in groups of similar length, shortest first, each padded to at most `max_rows` rows.

    lengths: (n,).  Together the groups are 0 .. n - 1; sequences of equal length keep their order.
    """
    order = np.argsort(lengths, kind="stable")
    for run in padded_runs(lengths[order].tolist(), max_rows, alike=True):
        yield order[run]
