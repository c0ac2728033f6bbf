"""Cuts a batch into tiles, each the work of one block, or warp, of a launch (`Tile` in params.cuh)."""

import numpy as np
import numpy.typing as npt

from bandrank_kernels.arrays import Ints, indices_within
from bandrank_kernels.windowed_attention.rows import PackedRows

TILE_INTS = 8
BEGIN, INDEX, NUM_TILES = 3, 6, 7  # fields in which the tiles of a sequence differ, and the number of these tiles
QUERY_TILE = -1
UNUSED_TILE = -2

Int32s = npt.NDArray[np.int32]
Tiles = Int32s


def plan_tiles(rows: PackedRows, tile_rows: int, *, capacity: int | None = None) -> Tiles:
    """Tiles of up to `tile_rows` rows: those of the candidates in order, then those of the queries.

    An empty candidate has one tile, for its [CLS]; an empty query has none.
    capacity: the number of tiles to return, the last of them unused, so that a captured graph has one grid size.
    Returns (num_tiles, TILE_INTS) int32. Raises ValueError if there are more than `capacity`, or rows beyond int32.
    """
    return _cut(np.concatenate([_candidates(rows, tile_rows), _queries(rows, tile_rows)]), tile_rows, capacity)


def plan_candidate_tiles(rows: PackedRows, tile_rows: int, *, capacity: int | None = None) -> Tiles:
    """Tiles of the candidates alone, as `plan_tiles` makes them."""
    return _cut(_candidates(rows, tile_rows), tile_rows, capacity)


def _candidates(rows: PackedRows, tile_rows: int) -> Tiles:
    """(num_candidates, TILE_INTS): the first tile of each candidate."""
    lengths, owner = rows.candidate_lengths, rows.candidate_query
    candidates = np.arange(rows.num_candidates)
    # The row that a tile of an empty candidate may read is its [CLS].
    first_rows = np.where(lengths > 0, rows.first_candidate_row + rows.cu_candidates[:-1], candidates)
    query_rows = rows.first_query_row + rows.cu_queries[:-1]
    counts = np.maximum(1, -(-lengths // tile_rows))
    of_query = query_rows[owner], rows.query_lengths[owner]
    return _first_tiles(rows, len(owner), candidates, first_rows, lengths, 0, *of_query, 0, counts)


def _queries(rows: PackedRows, tile_rows: int) -> Tiles:
    """(num_queries, TILE_INTS): the first tile of each query."""
    lengths, first_rows = rows.query_lengths, rows.first_query_row + rows.cu_queries[:-1]
    counts = -(-lengths // tile_rows)
    return _first_tiles(rows, len(lengths), QUERY_TILE, first_rows, lengths, 0, first_rows, lengths, 0, counts)


def _first_tiles(rows: PackedRows, num_sequences: int, *fields: Ints | int) -> Tiles:
    """The first tile of each sequence, from the fields of `Tile`: each a number for all, or an array with one for each.

    The last field, the number of a sequence's tiles, may be 0.
    """
    if rows.num_rows > np.iinfo(np.int32).max:
        raise ValueError(f"row numbers must fit in int32, got {rows.num_rows} rows")
    tiles = np.empty((num_sequences, TILE_INTS), np.int32)
    for column, field in enumerate(fields):
        tiles[:, column] = field
    return tiles


def _cut(first: Tiles, tile_rows: int, capacity: int | None) -> Tiles:
    """All tiles of the sequences, from the first tile of each."""
    counts = first[:, NUM_TILES].astype(np.int64)
    total = int(counts.sum())
    if capacity is not None and total > capacity:
        raise ValueError(f"{total} tiles do not fit in a launch of {capacity}")
    tiles = np.full((total if capacity is None else capacity, TILE_INTS), UNUSED_TILE, np.int32)
    if total == len(first) == np.count_nonzero(counts):
        tiles[:total] = first
        return tiles
    tiles[:total] = np.repeat(first, counts, axis=0)
    tiles[:total, INDEX] = indices_within(counts)
    tiles[:total, BEGIN] = tiles[:total, INDEX] * tile_rows
    return tiles
