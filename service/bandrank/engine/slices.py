"""Cuts work into slices of bounded size."""

import math
from collections.abc import Iterator, Sequence


def slices(sizes: Sequence[int], most: int, *, most_items: float = math.inf) -> Iterator[slice]:
    """Consecutive items of these sizes in slices of at most `most` together and at most so many items, or of one item;
    at least one slice.
    """
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and (total + size > most or index - start >= most_items):
            yield slice(start, index)
            start, total = index, 0
        total += size
    yield slice(start, len(sizes))
