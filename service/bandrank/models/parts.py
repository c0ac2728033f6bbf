"""Cuts a batch into parts, which workers compute side by side."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import Ints, offsets

# A small batch gives each worker one part, unless parts would have fewer rows than this.
MIN_PART_ROWS = 96
# If a worker would have more than this many times its share of the rows, the batch is not cut.
MAX_SHARES = 1.25


class Grain(NamedTuple):
    """How finely batches are cut, in rows.

    A batch with `large` rows or more for each worker is cut into more parts than workers, so that a worker whose core
    is busy with something else takes fewer: half of what is left is shared out equally, again and again (factoring,
    Hummel et al. 1992), as long as parts have at least `least` rows, enough for the Python between them not to matter.
    """

    large: int
    least: int


FINE = Grain(1024, 512)  # where one call computes a layer
COARSE = Grain(2048, 1024)  # where torch computes one operation after the other


@dataclass(frozen=True)
class Cut:
    """Sequences cut into parts: runs of them, once they are in some order.

    order: (n,) the indices of the sequences in that order; None if they keep their own.
    """

    runs: list[slice]
    order: Ints | None = None

    def parts(self, sequences: Ragged) -> list[Ragged]:
        """The sequences of each part."""
        sequences = sequences if self.order is None else sequences.take(self.order)
        return [sequences.part(run) for run in self.runs]

    def batches(self, batch: ScoreBatch) -> list[ScoreBatch]:
        """The candidates of each part, with their queries. Only the candidates of a single query may be reordered."""
        if self.order is not None:
            batch = replace(batch, candidates=batch.candidates.take(self.order))
        return [_part(batch, run) for run in self.runs]

    def joined(self, parts: Sequence[Ragged]) -> Ragged:
        """Joins the results of the parts, in the original order of the sequences."""
        joined = Ragged.joined(parts)
        return joined if self.order is None else joined.take(np.argsort(self.order))

    def concatenated(self, parts: Sequence[Tensor]) -> Tensor:
        """Like `joined`, for results of one row per sequence. parts: (n, ...) each."""
        rows = torch.cat([*parts])
        return rows if self.order is None else rows[torch.from_numpy(np.argsort(self.order))]


def split(lengths: Ints, count: int, grain: Grain = FINE, *, in_order: bool = True, again: float = 0.0) -> Cut:
    """Cuts sequences into parts for `count` workers, or into a single part if a few long ones have most rows, or parts
    would have to compute much again.

    lengths: the rows of each sequence.  in_order: whether sequences keep their order. If not, they are dealt out: the
    longest sequence that is left goes to the part that lacks most (Graham 1969).  again: what each part computes
    besides its sequences, such as their query, in rows.
    """
    sizes = _sizes(int(lengths.sum()), count, grain)
    cut = Cut(_runs(lengths, sizes)) if in_order or len(sizes) >= len(lengths) else _dealt(lengths, sizes)
    ordered = lengths if cut.order is None else lengths[cut.order]
    rows = [int(ordered[run].sum()) + again for run in cut.runs]
    is_even = rows and _most_rows(rows, count) * count <= MAX_SHARES * (lengths.sum() + again)
    return cut if is_even else Cut([slice(0, len(lengths))])


def _sizes(total: int, count: int, grain: Grain) -> list[float]:
    """The rows that the parts should have, in descending order."""
    if count == 1 or total < count * grain.large:
        parts = max(1, min(count, total // MIN_PART_ROWS))
        return [total / parts] * parts
    sizes, left = [], total / count
    while left / 2 >= grain.least:
        left /= 2
        sizes += [left] * count
    return sizes + [left] * count


def _dealt(lengths: Ints, sizes: Sequence[float]) -> Cut:
    """Deals sequences out to parts of about these sizes."""
    parts: list[list[int]] = [[] for _ in sizes]
    lacking = [(-size, part) for part, size in enumerate(sizes)]  # a heap: the sizes descend
    for index in np.argsort(-lengths, kind="stable").tolist():
        lack, part = lacking[0]
        parts[part].append(index)
        heapq.heapreplace(lacking, (lack + int(lengths[index]), part))
    bounds = offsets([len(part) for part in parts if part]).tolist()
    return Cut([slice(begin, end) for begin, end in pairwise(bounds)], np.array([*chain(*parts)]))


def _runs(lengths: Ints, sizes: Sequence[float]) -> list[slice]:
    """Cuts sequences into runs, none of them empty, that end as near as possible to where such parts would."""
    after, ends = np.cumsum(lengths), np.cumsum(sizes)[:-1]
    last = np.searchsorted(after, ends)
    middle = after[last] - lengths[last] / 2
    stops = np.where(ends < middle, last, last + 1)
    return [slice(begin, end) for begin, end in pairwise(sorted({0, *stops.tolist(), len(lengths)}))]


def _most_rows(parts: Sequence[float], count: int) -> float:
    """The most rows that a worker gets, when each takes the next part as soon as it is free."""
    rows = [0.0] * count
    for part in parts:
        heapq.heapreplace(rows, rows[0] + part)
    return max(rows)


def _part(batch: ScoreBatch, run: slice) -> ScoreBatch:
    groups = list(batch.groups(run.start, run.stop))
    if not groups:
        return ScoreBatch(batch.queries.part(slice(0, 0)), batch.candidates.part(run), offsets([]))
    first, last = groups[0][0], groups[-1][0]
    cu_candidates = batch.cu_candidates[first : last + 2].clip(run.start, run.stop) - run.start
    return ScoreBatch(batch.queries.part(slice(first, last + 1)), batch.candidates.part(run), cu_candidates)
