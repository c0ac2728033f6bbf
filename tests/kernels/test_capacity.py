"""Buckets hold their batches, waste little, and give their batches launches of one size."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn_layouts import layouts
from support.forward_kernels import AMPERE, TURING
from support.layouts import CPU

from bandrank_kernels.cuda import Dtype
from bandrank_kernels.windowed_attention import AttentionPattern, Capacity, PackedRows
from bandrank_kernels.windowed_attention.capacity import MIN_ROWS, row_bucket
from bandrank_kernels.windowed_attention.cuda.forward import plan_forward
from bandrank_kernels.windowed_attention.cuda.plan import CudaPlan
from bandrank_kernels.windowed_attention.cuda.tiles import UNUSED_TILE, plan_candidate_tiles, plan_tiles

SPARSE = AttentionPattern(4, query_to_cls=False, query_to_candidate=False)


@given(st.data(), st.sampled_from([31, 60, 124, 248, 256]))
def test_tiles_of_a_batch_fit_in_its_bucket(data: st.DataObject, tile_rows: int) -> None:
    """`plan_tiles` raises if its table is too small, whatever the lengths of the batch."""
    rows = data.draw(layouts(SPARSE))
    capacity = Capacity.of(rows)

    assert rows.num_rows <= capacity.num_rows
    assert max(rows.num_candidates, rows.num_queries) <= capacity.num_candidates <= capacity.num_rows
    assert len(plan_tiles(rows, tile_rows, capacity=capacity.num_tiles(tile_rows))) == capacity.num_tiles(tile_rows)
    plan_candidate_tiles(rows, tile_rows, capacity=capacity.num_candidate_tiles(tile_rows))


@given(st.integers(MIN_ROWS + 1, 100_000))
def test_a_batch_fills_eight_ninths_of_its_bucket(num_rows: int) -> None:
    """Buckets are also multiples of eight rows."""
    bucket = row_bucket(num_rows)

    assert num_rows <= bucket <= 1.125 * num_rows
    assert bucket % 8 == 0


@given(st.data(), st.sampled_from([("float16", AMPERE), ("float16", TURING), ("float32", AMPERE)]))
def test_launches_of_a_bucket_are_alike(data: st.DataObject, card: tuple[Dtype, tuple[int, int]]) -> None:
    """Batches of one capacity share kernel, grid, scratch and window: the pattern's, or else the longest candidate."""
    dtype, capability = card
    patterns = [AttentionPattern(window, query_to_cls=False, query_to_candidate=False) for window in (0, 4, 16, None)]
    pattern = data.draw(st.sampled_from(patterns))
    first, other = (data.draw(layouts(pattern)) for _ in range(2))
    capacity = Capacity(
        *map(
            max,
            *((c.num_rows, c.num_candidates, c.query_rows, c.candidate_rows) for c in map(Capacity.of, (first, other))),
        )
    )
    plans = [
        plan_forward(rows, pattern, num_heads=2, head_dim=32, dtype=dtype, capability=capability, capacity=capacity)
        for rows in (first, other)
    ]

    facts = [(p.signature, p.blocks, p.num_partials, p.num_arrivals, p.tiles.shape) for p in plans]
    assert facts[0] == facts[1]
    assert plans[0].window == (capacity.candidate_rows if pattern.window is None else pattern.window)
    assert plans[0].num_arrivals == 2 * capacity.num_candidates


@pytest.mark.parametrize(("query_rows", "kept"), [(1, 15), (15, 15), (16, 31), (63, 63), (64, 127)])
def test_no_bucket_asks_for_more_tiles_of_globals_than_its_queries(query_rows: int, kept: int) -> None:
    """A query is rounded up so that, together with [CLS], it fills the tiles of the kernel of narrow windows."""
    rows = PackedRows(np.array([0, query_rows]), np.array([0, 3]), np.array([0]))

    assert Capacity.of(rows).query_rows == kept


def test_tables_that_are_not_the_batchs_are_marked() -> None:
    """In both tables, entries behind those of the batch are marked as unused."""
    rows = PackedRows(np.array([0, 5]), np.array([0, 100, 110]), np.array([0, 0]))
    plan = CudaPlan(
        rows, SPARSE, device=CPU, dtype=torch.float16, head_dim=32, capability=AMPERE, capacity=Capacity.of(rows)
    )
    *tables, arrivals = plan.host_tables
    counts = [int((table[:, 0] != UNUSED_TILE).sum()) for table in tables]

    assert counts == [4, 2]
    assert [len(table) for table in tables] == [120 // 90 + 16, 120 // 256 + 8]
    assert torch.equal(arrivals, torch.zeros(8 * 16, dtype=torch.int32))
