"""Batches of pairs, or of texts, of similar length, with little padding."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

Batch = npt.NDArray[np.int64]  # (3, pairs, longest): token ids, mask and token types

BATCH_PAIRS = 16  # faster than larger batches
LONG_TOKENS = 512  # pairs over this go one by one: attention scores of 16 such pairs would take gigabytes


def sorted_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yields the indices of each batch's pairs, shortest first. lengths: of each pair, in tokens."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    while order:
        size = BATCH_PAIRS if lengths[order[:BATCH_PAIRS][-1]] <= LONG_TOKENS else 1
        yield order[:size]
        order = order[size:]


def padded_batches(pairs: Sequence[Encoding]) -> Iterator[tuple[list[int], Batch]]:
    """Yields padded batches of similar length, with the indices of their pairs."""
    for indices in sorted_batches([len(pair.ids) for pair in pairs]):
        batch = np.zeros((3, len(indices), len(pairs[indices[-1]].ids)), np.int64)
        for row, index in enumerate(indices):
            length = len(pairs[index].ids)
            batch[0, row, :length] = pairs[index].ids
            batch[1, row, :length] = 1
            batch[2, row, :length] = pairs[index].type_ids
        yield indices, batch
