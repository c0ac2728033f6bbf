"""Layouts of usual requests, for which a service prepares before the first one comes."""

from collections.abc import Iterator
from itertools import takewhile

import numpy as np

from bandrank_kernels.arrays import offsets
from bandrank_kernels.windowed_attention import PackedRows, row_buckets

# The longest queries and the most candidates of a bucket: queries of up to 30 tokens, with 17 to 128 candidates.
QUERY_ROWS, CANDIDATES = (15, 31), (32, 64, 128)
SHORTEST, LONGEST = 32, 256  # mean lengths of candidates, in tokens
TEXT_ROWS = (256, 512)  # the longest texts of a bucket


def usual_layouts(max_rows: int) -> Iterator[PackedRows]:
    """Yields a layout for each bucket of usual requests: one query, and candidates of about equal length. Large layouts
    come first, so that the others reuse their memory.

    max_rows: the most rows of a layout.
    """
    for num_rows, count in usual_sizes(max_rows):
        yield from (_layout(num_rows, query_rows, count) for query_rows in QUERY_ROWS)


def usual_texts(max_rows: int) -> Iterator[PackedRows]:
    """The same where each candidate has a copy of its query: of those, buckets differ in the longest of both together,
    which the first candidate has.
    """
    query_rows = QUERY_ROWS[0]
    for num_rows, count in usual_sizes(max_rows):
        for longest in TEXT_ROWS:
            others = even_lengths(num_rows - longest, count - 1)
            if 1 + query_rows <= others[-1] < longest:
                lengths = np.array([longest, *others])
                queries = offsets([query_rows] * count)
                yield PackedRows(queries, offsets(lengths - 1 - query_rows), np.arange(count))


def even_lengths(num_rows: int, count: int) -> list[int]:
    """The lengths of `count` texts of about equal length with so many rows together, the longer ones first."""
    length, longer = divmod(num_rows, count)
    return [length + (number < longer) for number in range(count)]


def usual_sizes(max_rows: int) -> Iterator[tuple[int, int]]:
    """Yields the numbers of rows and of candidates of usual requests, most rows first."""
    sizes = takewhile(lambda size: size <= max_rows, row_buckets())
    for num_rows in reversed(list(sizes)):
        yield from ((num_rows, count) for count in CANDIDATES if count // 2 * SHORTEST <= num_rows <= count * LONGEST)


def _layout(num_rows: int, query_rows: int, count: int) -> PackedRows:
    lengths = even_lengths(num_rows - count - query_rows, count)
    return PackedRows(offsets([query_rows]), offsets(lengths), np.zeros(count, np.int64))
