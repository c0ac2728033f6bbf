"""Buckets of batches: batches in one bucket have launches of the same size, and so share a captured CUDA graph.

In lines marked with @, tests plant mistakes (tests/emulation/README.md).
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Self

from bandrank_kernels.windowed_attention.rows import PackedRows

MIN_ROWS, ROW_STEP, ROW_MULTIPLE = 64, 1.125, 8  # a batch fills eight ninths of its bucket or more, 94% on average
MIN_CANDIDATES = 8
MIN_GLOBALS = 16  # [CLS] and the query: two tiles of keys, the fewest that kernels are built for
SHORTEST_CANDIDATE = 32  # above the widest window of narrow.cuh, so that no bucket narrows it


@dataclass(frozen=True)
class Capacity:
    """The largest batch that fits. num_rows: rows of the packed matrix.  num_candidates: candidates, and queries too.
    query_rows, candidate_rows: rows of the longest query and candidate.

    The number of rows grows in steps of 1.125, since all products run over rows. The other sizes, which cost next to
    nothing, are powers of two (a query's together with [CLS]), so that there are few buckets.
    """

    num_rows: int
    num_candidates: int
    query_rows: int
    candidate_rows: int

    @classmethod
    def exactly(cls, rows: PackedRows) -> Self:
        """The capacity that this batch fills."""
        longest = (int(lengths.max(initial=0)) for lengths in (rows.query_lengths, rows.candidate_lengths))
        return cls(rows.num_rows, rows.num_candidates, *longest)

    @classmethod
    def of(cls, rows: PackedRows) -> Self:
        """The smallest bucket that holds the batch. It has a row for each of its candidates."""
        least = cls.exactly(rows)
        return cls(
            num_rows=bucket_rows(rows),
            num_candidates=_bucket_candidates(rows),
            query_rows=power_of_two(1 + least.query_rows, MIN_GLOBALS) - 1,
            candidate_rows=power_of_two(least.candidate_rows, SHORTEST_CANDIDATE),
        )

    def num_tiles(self, tile_rows: int) -> int:
        """The most tiles that `plan_tiles` cuts a batch into: each sequence may end with one that is not full."""
        return self.num_rows // tile_rows + 2 * self.num_candidates  # @most-tiles

    def num_candidate_tiles(self, tile_rows: int) -> int:
        """The most tiles that `plan_candidate_tiles` cuts a batch into."""
        return self.num_rows // tile_rows + self.num_candidates


def bucket_rows(rows: PackedRows) -> int:
    """The `num_rows` of a batch's capacity."""
    return row_bucket(max(rows.num_rows, _bucket_candidates(rows)))


def _bucket_candidates(rows: PackedRows) -> int:
    return power_of_two(max(rows.num_candidates, rows.num_queries), MIN_CANDIDATES)


def row_bucket(num_rows: int) -> int:
    """The smallest bucket, in rows, that holds `num_rows`."""
    first = bisect_left(_FIRST_BUCKETS, num_rows)
    return _FIRST_BUCKETS[first] if first < len(_FIRST_BUCKETS) else next(b for b in row_buckets() if b >= num_rows)


def row_buckets() -> Iterator[int]:
    """All buckets, in rows, ascending without end."""
    bucket = MIN_ROWS
    while True:
        yield bucket
        bucket = int(bucket * ROW_STEP) // ROW_MULTIPLE * ROW_MULTIPLE


_FIRST_BUCKETS = [*islice(row_buckets(), 100)]  # up to almost five million rows


def power_of_two(number: int, least: int) -> int:
    """The smallest power of two that is at least `number`, or `least`, if that is more."""
    return max(least, 1 << max(0, number - 1).bit_length())
