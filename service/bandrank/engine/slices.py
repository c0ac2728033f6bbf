"""Cuts work into slices of bounded size."""

from collections.abc import Iterator, Sequence


def slices(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Consecutive items of these sizes in slices of at most `most` together, or of one item; at least one slice."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > most:
            yield slice(start, index)
            start, total = index, 0
        total += size
    yield slice(start, len(sizes))
