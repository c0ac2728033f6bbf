"""Cuts a batch into tiles, each the work of one block, or warp, of a launch (`Tile` in params.cuh)."""

import numpy as np
import numpy.typing as npt

from bandrank_kernels.arrays import Ints, indices_within
from bandrank_kernels.windowed_attention.rows import PackedRows

TILE_INTS = 8
QUERY_TILE = -1
UNUSED_TILE = -2

Int32s = npt.NDArray[np.int32]
Tiles = Int32s


def plan_tiles(rows: PackedRows, tile_rows: int, *, capacity: int | None = None) -> Tiles:
    """Tiles of up to `tile_rows` rows: those of the candidates in order, then those of the queries.

    An empty candidate has one tile, for its [CLS]; an empty query has none. capacity: the number of tiles
    to return, the last of them unused, so that a captured graph has one grid size.
    Returns (num_tiles, TILE_INTS) int32. Raises ValueError if there are more than `capacity`, or rows beyond int32.
    """
    lengths, first_rows = np.diff(rows.cu_queries), rows.first_query_row + rows.cu_queries[:-1]
    queries = np.stack([np.full(rows.num_queries, QUERY_TILE), first_rows, lengths, first_rows, lengths], 1)
    candidates = _candidates(rows)
    counts = np.concatenate([_tile_counts(candidates, tile_rows), -(-lengths // tile_rows)])
    return _cut(rows, np.concatenate([candidates, queries]), counts, tile_rows, capacity)


def plan_candidate_tiles(rows: PackedRows, tile_rows: int, *, capacity: int | None = None) -> Tiles:
    """Tiles of the candidates alone, as `plan_tiles` makes them."""
    candidates = _candidates(rows)
    return _cut(rows, candidates, _tile_counts(candidates, tile_rows), tile_rows, capacity)


def _candidates(rows: PackedRows) -> Ints:
    """(num_candidates, 5): the fields that all tiles of a candidate share, in the order of `Tile`."""
    query_lengths, lengths = np.diff(rows.cu_queries), np.diff(rows.cu_candidates)
    candidates, owner = np.arange(rows.num_candidates), rows.candidate_query
    # The row that a tile of an empty candidate may read is its [CLS].
    first_rows = np.where(lengths > 0, rows.first_candidate_row + rows.cu_candidates[:-1], candidates)
    query_rows = rows.first_query_row + rows.cu_queries[:-1]
    return np.stack([candidates, first_rows, lengths, query_rows[owner], query_lengths[owner]], 1)


def _tile_counts(candidates: Ints, tile_rows: int) -> Ints:
    return np.maximum(1, -(-candidates[:, 2] // tile_rows))


def _cut(rows: PackedRows, sequences: Ints, counts: Ints, tile_rows: int, capacity: int | None) -> Tiles:
    """Cuts each sequence into as many tiles as `counts` says."""
    if rows.num_rows > np.iinfo(np.int32).max:
        raise ValueError(f"row numbers must fit in int32, got {rows.num_rows} rows")
    num_tiles = np.repeat(counts, counts)
    index = indices_within(counts)
    candidate, first_row, num_rows, query_row, query_rows = np.repeat(sequences, counts, axis=0).T
    tiles = np.stack([candidate, first_row, num_rows, index * tile_rows, query_row, query_rows, index, num_tiles], 1)
    if capacity is None:
        return tiles.astype(np.int32)
    if len(tiles) > capacity:
        raise ValueError(f"{len(tiles)} tiles do not fit in a launch of {capacity}")
    padded = np.full((capacity, TILE_INTS), UNUSED_TILE, np.int32)
    padded[: len(tiles)] = tiles
    return padded
