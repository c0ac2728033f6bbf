"""The plan of the backward pass: two launches, and the layout of the partial sums between them."""

import math
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from bandrank_kernels.arrays import Ints, indices_within, offsets
from bandrank_kernels.cuda import Dtype
from bandrank_kernels.launch import Launch, plan_launch, struct_layout
from bandrank_kernels.windowed_attention.cuda.forward import is_readable
from bandrank_kernels.windowed_attention.cuda.tiles import Int32s, Tiles, plan_tiles
from bandrank_kernels.windowed_attention.cuda.variants import GRADIENT_PARTS, Gradient
from bandrank_kernels.windowed_attention.rows import PackedRows

# `GradientParams` of gradient.cuh.
PARAMS = struct_layout(
    addresses="qkv out towards result lse delta tiles first_vectors partials totals",
    longs="row_stride",
    ints="num_heads window column_blocks",
    floats="scale root",
)
FLOAT_BYTES = 4
GLOBALS_AT_ONCE = 16  # kGlobalsAtOnce of gradient.cuh


@dataclass(frozen=True)
class GradientTables:
    """The int32 tables that both launches read, to be copied to the device (gradient.cuh).

    tiles: (num_tiles, 8), those of candidates first.  first_vectors: (num_tiles,) where a tile's partials begin.
    totals: (num_totals, 8), one for each query row and each [CLS].
    """

    tiles: Tiles
    first_vectors: Int32s
    totals: Int32s
    num_vectors: int
    num_candidate_tiles: int


@dataclass(frozen=True, eq=False)
class GradientPlan:
    """The two launches without their tensors. window: in tokens; the longest candidate's length for no limit."""

    dtype: Dtype
    head_dim: int
    num_heads: int
    window: int
    tables: GradientTables

    @property
    def num_partials(self) -> int:
        """float32 of scratch, initialised or not."""
        return self.tables.num_vectors * self.num_heads * self.head_dim

    def launches(
        self,
        towards: Tensor,
        qkv: Tensor,
        out: Tensor,
        lse: Tensor,
        *,
        result: Tensor,
        delta: Tensor,
        partials: Tensor,
        tiles: Tensor,
        first_vectors: Tensor,
        totals: Tensor,
    ) -> list[Launch]:
        """The launches that write `result`, (num_rows, 3, num_heads, head_dim), in order. No rows, no launches.

        towards: the gradient of `out`.  qkv: `is_readable`.  All others are contiguous.  delta: (num_rows, num_heads)
        float32 of scratch.  partials: `num_partials` of it.  tiles, first_vectors, totals: `tables` on the device.
        """
        assert is_readable(qkv), "rows that the kernels cannot read in place. This is a bug."
        rows, columns = (Gradient(self.dtype, self.head_dim, part) for part in GRADIENT_PARTS)
        row_blocks = len(self.tables.tiles) * self.num_heads
        if not row_blocks:
            return []
        column_blocks = self.tables.num_candidate_tiles * self.num_heads
        by_rows = plan_launch(
            rows.kernel,
            blocks=row_blocks,
            threads=rows.threads,
            shared_bytes=FLOAT_BYTES * 2 * (rows.tile_rows + 1) * (self.head_dim + GLOBALS_AT_ONCE),
            layout=PARAMS,
            qkv=qkv,
            out=out,
            towards=towards,
            result=result,
            lse=lse,
            delta=delta,
            tiles=tiles,
            first_vectors=first_vectors,
            partials=partials,
            totals=totals,
            row_stride=qkv.stride(0),
            num_heads=self.num_heads,
            window=self.window,
            column_blocks=column_blocks,
            scale=math.log2(math.e) / math.sqrt(self.head_dim),
            root=1 / math.sqrt(self.head_dim),
        )
        by_columns = replace(
            by_rows,
            kernel=columns.kernel,
            blocks=column_blocks + len(self.tables.totals) * self.num_heads,
            threads=columns.threads,
            shared_bytes=FLOAT_BYTES * columns.threads,
        )
        return [by_rows, by_columns]


def plan_tables(rows: PackedRows, tile_rows: int) -> GradientTables:
    """The layout of the partial sums, and which of them add up to which row.

    A tile writes 1 + 2 * (1 + query_rows) vectors. The tiles of a query's candidates are consecutive, and so are those
    of the query: each total is the sum of two evenly spaced runs.
    """
    query_lengths, lengths, owner = rows.query_lengths, rows.candidate_lengths, rows.candidate_query
    counts, query_counts = np.maximum(1, -(-lengths // tile_rows)), -(-query_lengths // tile_rows)
    query_of_tile = np.concatenate([np.repeat(owner, counts), np.repeat(np.arange(rows.num_queries), query_counts)])
    steps = 3 + 2 * query_lengths
    bounds = offsets(steps[query_of_tile])
    if bounds[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"partial sums must be countable in int32, got {bounds[-1]} vectors")
    tile_bounds = offsets(counts)
    first_query_tiles = tile_bounds[-1] + offsets(query_counts)[:-1]

    cls = _table(np.arange(rows.num_candidates), 0, bounds[tile_bounds[:-1]], counts, steps[owner], 0, 0, 0)
    query = np.repeat(np.arange(rows.num_queries), query_lengths)
    begin, end = (np.searchsorted(owner, np.arange(rows.num_queries), side) for side in ("left", "right"))
    number = 1 + indices_within(query_lengths)  # of the row among the globals
    totals = _table(
        rows.first_query_row + np.arange(len(query)),
        1,
        bounds[tile_bounds[begin]][query] + 1 + 2 * number,
        (tile_bounds[end] - tile_bounds[begin])[query],
        steps[query],
        bounds[first_query_tiles][query] + 1 + 2 * number,
        query_counts[query],
        0,
    )
    return GradientTables(
        tiles=plan_tiles(rows, tile_rows),
        first_vectors=bounds[:-1].astype(np.int32),
        totals=np.concatenate([totals, cls]).astype(np.int32),  # the longest sums first
        num_vectors=int(bounds[-1]),
        num_candidate_tiles=int(tile_bounds[-1]),
    )


def _table(*fields: Ints | int) -> Ints:
    """(n, len(fields)): a row for each of n `Total`s, whose fields are columns, or one number for all."""
    return np.stack(np.broadcast_arrays(*fields), 1)
