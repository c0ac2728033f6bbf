"""Cuts a batch into tiles, each the work of one block, or warp, of a launch (`Tile` in params.cuh)."""

import numpy as np
import numpy.typing as npt

from bandrank_kernels.windowed_attention.rows import PackedRows

LENGTH, BEGIN, INDEX, NUM_TILES = 2, 3, 6, 7  # fields of `Tile`; a sequence's tiles differ in the second and third
UNUSED_TILE = -2

Int32s = npt.NDArray[np.int32]
Tiles = Int32s


def plan_tiles(rows: PackedRows, tile_rows: int, *, capacity: int | None = None) -> Tiles:
    """Tiles of up to `tile_rows` rows: those of the candidates in order, then those of the queries.

    An empty candidate has one tile, for its [CLS]; an empty query has none.
    capacity: the number of tiles to return, the last of them unused, so that a captured graph has one grid size.
    Returns (num_tiles, 8) int32. Raises ValueError if there are more than `capacity`, or rows beyond int32.
    """
    return _cut(rows.sequences, tile_rows, capacity)


def plan_candidate_tiles(rows: PackedRows, tile_rows: int, *, capacity: int | None = None) -> Tiles:
    """Tiles of the candidates alone, as `plan_tiles` makes them."""
    return _cut(rows.sequences[: rows.num_candidates], tile_rows, capacity)


def _cut(first: Tiles, tile_rows: int, capacity: int | None) -> Tiles:
    """All tiles of the sequences, from the first tile of each."""
    counts = np.maximum(-(-first[:, LENGTH] // tile_rows), first[:, NUM_TILES])
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    if capacity is not None and total > capacity:
        raise ValueError(f"{total} tiles do not fit in a launch of {capacity}")
    tiles = np.empty((total if capacity is None else capacity, first.shape[1]), np.int32)
    tiles[total:] = UNUSED_TILE
    used = tiles[:total]
    if total == len(first) and counts.all():
        used[:] = first
        return tiles
    first = first.copy()
    first[:, INDEX], first[:, NUM_TILES] = ends - counts, counts
    used[:] = first.repeat(counts, 0)
    used[:, INDEX] = np.arange(total) - used[:, INDEX]
    used[:, BEGIN] = used[:, INDEX] * tile_rows
    return tiles
