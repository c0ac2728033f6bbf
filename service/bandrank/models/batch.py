"""Batches of queries with their candidates."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import Ints, Offsets, lengths_of, offsets


@dataclass(frozen=True)
class ScoreBatch:
    """Queries with their candidates; a query may have none.

    queries: Q sequences of token ids.  candidates: C sequences, token ids or the scorer's representations.
    cu_candidates: (Q + 1,), query q has candidates cu_candidates[q] .. cu_candidates[q + 1] - 1.
    Raises ValueError if the offsets do not cover the candidates.
    """

    queries: Ragged
    candidates: Ragged
    cu_candidates: Offsets

    def __post_init__(self) -> None:
        expected = (len(self.queries) + 1, len(self.candidates))
        if (len(self.cu_candidates), int(self.cu_candidates[-1])) != expected or self.cu_candidates[0] != 0:
            raise ValueError(
                f"cu_candidates must have {expected[0]} entries from 0 to {expected[1]}, got {self.cu_candidates}"
            )

    @cached_property
    def candidate_query(self) -> Ints:
        """(C,) the index of each candidate's query, ascending."""
        return np.arange(len(self.queries)).repeat(lengths_of(self.cu_candidates))

    def of_query(self, query: int, group: slice) -> "ScoreBatch":
        """The batch of one query and its candidates in `group`."""
        candidates = self.candidates.part(group)
        return ScoreBatch(self.queries.part(slice(query, query + 1)), candidates, offsets([len(candidates)]))

    def groups(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, slice]]:
        """Yields each query's index with the slice of its candidates in begin .. end - 1; skips empty slices."""
        end = len(self.candidates) if end is None else end
        bounds = self.cu_candidates.clip(begin, end).tolist()
        for query, group in enumerate(map(slice, bounds[:-1], bounds[1:])):
            if group.start < group.stop:
                yield query, group
