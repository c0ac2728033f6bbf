"""Cuts a batch into tiles: what each block, or warp, of a launch computes (`Tile` in params.cuh)."""

import numpy as np
import numpy.typing as npt

from bandrank_kernels.windowed_attention.rows import PackedRows

TILE_INTS = 8
QUERY_TILE = -1
UNUSED_TILE = -2

Tiles = npt.NDArray[np.int32]


def plan_tiles(rows: PackedRows, tile_rows: int, *, capacity: int | None = None) -> Tiles:
    """Tiles of up to `tile_rows` rows: those of the candidates in order, then those of the queries.

    An empty candidate has one tile, for its [CLS]; an empty query has none. capacity: as many tiles are returned, the
    last of them unused, so that a captured graph has one grid size.
    Returns (num_tiles, TILE_INTS) int32. Raises ValueError if there are more than `capacity`, or rows beyond int32.
    """
    if rows.num_rows > np.iinfo(np.int32).max:
        raise ValueError(f"row numbers must fit in int32, got {rows.num_rows} rows")
    query_lengths, lengths = np.diff(rows.cu_queries), np.diff(rows.cu_candidates)
    query_rows = rows.first_query_row + rows.cu_queries[:-1]
    candidates = np.arange(rows.num_candidates)
    # The row that a tile of an empty candidate may read is its [CLS].
    first_rows = np.where(lengths > 0, rows.first_candidate_row + rows.cu_candidates[:-1], candidates)
    owner = rows.candidate_query
    counts = np.maximum(1, -(-lengths // tile_rows))
    sequences = np.stack([candidates, first_rows, lengths, query_rows[owner], query_lengths[owner], counts], 1)
    query_counts = -(-query_lengths // tile_rows)
    query_sequences = np.stack(
        [np.full(rows.num_queries, QUERY_TILE), query_rows, query_lengths, query_rows, query_lengths, query_counts], 1
    )
    per_tile = np.repeat(np.concatenate([sequences, query_sequences]), np.concatenate([counts, query_counts]), axis=0)
    ends = np.cumsum(np.concatenate([counts, query_counts]))
    index = np.arange(len(per_tile)) - np.repeat(ends - np.diff(ends, prepend=0), np.diff(ends, prepend=0))
    candidate, first_row, num_rows, query_row, query_count, num_tiles = per_tile.T
    tiles = np.stack([candidate, first_row, num_rows, index * tile_rows, query_row, query_count, index, num_tiles], 1)
    if capacity is None:
        return tiles.astype(np.int32)
    if len(tiles) > capacity:
        raise ValueError(f"{len(tiles)} tiles do not fit in a launch of {capacity}")
    padded = np.full((capacity, TILE_INTS), UNUSED_TILE, np.int32)
    padded[: len(tiles)] = tiles
    return padded
