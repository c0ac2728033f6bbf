"""Batches of pairs of similar length, with little padding."""

from collections.abc import Iterator, Sequence

BATCH_PAIRS = 16  # faster than larger batches
LONG_TOKENS = 512  # pairs over this go one by one: attention scores of 16 such pairs would take gigabytes


def sorted_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yields the indices of each batch's pairs, shortest first. lengths: of each pair, in tokens."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    while order:
        size = BATCH_PAIRS if lengths[order[:BATCH_PAIRS][-1]] <= LONG_TOKENS else 1
        yield order[:size]
        order = order[size:]
