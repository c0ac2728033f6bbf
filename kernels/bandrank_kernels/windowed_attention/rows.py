"""The layout of a batch's rows: [CLS of every candidate | each query once | candidates]."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from bandrank_kernels.arrays import Ints, Offsets, lengths_of, offsets
from bandrank_kernels.windowed_attention.pattern import AttentionPattern


@dataclass(frozen=True)
class PackedRows:
    """The layout of one packed row matrix, in host memory: planning on it never waits for a device.

    cu_queries: (num_queries + 1,) offsets into the query rows.  cu_candidates: (num_candidates + 1,) offsets into the
    candidate rows.  candidate_query: (num_candidates,) which query a candidate belongs to, ascending.
    Row c < num_candidates is the [CLS] of candidate c; then come the query rows; then the candidate rows. Empty queries
    and empty candidates are legal. Raises ValueError if the three do not fit together.
    """

    cu_queries: Offsets
    cu_candidates: Offsets
    candidate_query: Ints

    def __post_init__(self) -> None:
        for name, cu, lengths in (
            ("cu_queries", self.cu_queries, self.query_lengths),
            ("cu_candidates", self.cu_candidates, self.candidate_lengths),
        ):
            if cu.ndim != 1 or len(cu) == 0 or cu[0] != 0 or lengths.min(initial=0) < 0:
                raise ValueError(f"{name} must ascend from 0, got {cu}")
        owners = self.candidate_query
        if len(owners) != self.num_candidates:
            raise ValueError(f"candidate_query must have {self.num_candidates} entries, got {len(owners)}")
        if len(owners) and (owners[0] < 0 or owners[-1] >= self.num_queries or (owners[1:] < owners[:-1]).any()):
            raise ValueError(f"candidate_query must ascend within 0..{self.num_queries - 1}, got {owners}")

    @classmethod
    def of_texts(cls, cu_seqlens: Offsets) -> Self:
        """Texts by themselves, which are packed as queries without candidates."""
        return cls(cu_seqlens, offsets([]), np.zeros(0, np.int64))

    @property
    def num_queries(self) -> int:
        return len(self.cu_queries) - 1

    @property
    def num_candidates(self) -> int:
        return len(self.cu_candidates) - 1

    @cached_property
    def query_lengths(self) -> Ints:
        """(num_queries,) the number of each query's rows."""
        return lengths_of(self.cu_queries)

    @cached_property
    def candidate_lengths(self) -> Ints:
        """(num_candidates,) the number of each candidate's rows, without its [CLS]."""
        return lengths_of(self.cu_candidates)

    @property
    def first_query_row(self) -> int:
        return self.num_candidates

    @cached_property
    def first_candidate_row(self) -> int:
        return self.num_candidates + int(self.cu_queries[-1])

    @cached_property
    def num_rows(self) -> int:
        return self.first_candidate_row + int(self.cu_candidates[-1])

    @cached_property
    def sequences(self) -> npt.NDArray[np.int32]:
        """(num_candidates + num_queries, 8) the first `Tile` (params.cuh) of each, with the fewest that it may have.
        Raises ValueError for rows beyond int32.
        """
        if self.num_rows > np.iinfo(np.int32).max:
            raise ValueError(f"row numbers must fit in int32, got {self.num_rows} rows")
        count = self.num_candidates
        tiles = np.zeros((count + self.num_queries, 8), np.int32)
        candidates, queries = tiles[:count], tiles[count:]
        candidates[:, 0], queries[:, 0] = np.arange(count), -1
        # The row that a tile of an empty candidate may read is its [CLS].
        first_rows = self.first_candidate_row + self.cu_candidates[:-1]
        candidates[:, 1] = np.where(self.candidate_lengths > 0, first_rows, candidates[:, 0])
        candidates[:, 2], candidates[:, 7] = self.candidate_lengths, 1
        queries[:, 4], queries[:, 5] = self.first_query_row + self.cu_queries[:-1], self.query_lengths
        queries[:, 1:3], queries[:, 7] = queries[:, 4:6], self.query_lengths > 0
        candidates[:, 4:6] = queries[:, 4:6].take(self.candidate_query, 0)
        return tiles

    def query_rows(self, query: int) -> range:
        """The rows of one query."""
        return range(
            self.first_query_row + int(self.cu_queries[query]), self.first_query_row + int(self.cu_queries[query + 1])
        )

    def candidate_rows(self, candidate: int) -> range:
        """The rows of one candidate, without its [CLS]."""
        first = self.first_candidate_row
        return range(first + int(self.cu_candidates[candidate]), first + int(self.cu_candidates[candidate + 1]))

    def check(self, pattern: AttentionPattern) -> None:
        """Raises ValueError if candidates share a query whose rows would depend on the candidate."""
        if not pattern.shares_queries and not np.array_equal(self.candidate_query, np.arange(self.num_queries)):
            raise ValueError("query rows attend to [CLS] or candidate rows: each candidate needs a copy of its query")
