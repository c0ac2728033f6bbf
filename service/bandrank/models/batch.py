"""What a scorer scores in one go."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import Ints, Offsets


@dataclass(frozen=True)
class ScoreBatch:
    """Queries with their candidates.

    queries: Q sequences of token ids.  candidates: C sequences, the scorer's representations.
    cu_candidates: (Q + 1,), query q owns candidates cu_candidates[q] .. cu_candidates[q + 1] - 1. A query may own none.
    Raises ValueError if the counts differ.
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

    @property
    def candidate_query(self) -> Ints:
        """(C,) the query that owns each candidate, ascending."""
        return np.repeat(np.arange(len(self.queries)), np.diff(self.cu_candidates))

    def groups(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, slice]]:
        """Queries with the candidates each owns among candidates begin .. end - 1; those that own none are left out."""
        end = len(self.candidates) if end is None else end
        bounds = self.cu_candidates.clip(begin, end).tolist()
        for query, own in enumerate(map(slice, bounds[:-1], bounds[1:])):
            if own.start < own.stop:
                yield query, own
