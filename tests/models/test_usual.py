"""The layouts that a service prepares for have the graphs that usual requests need."""

from collections.abc import Hashable
from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bandrank.engine.engine import GPU_BATCH_ROWS
from bandrank.models.graphs import MAX_GRAPHS
from bandrank.models.layers.patterns import sparse
from bandrank.models.packed_buckets import MAX_ROWS
from bandrank.models.usual import usual_layouts
from bandrank_kernels.arrays import offsets
from bandrank_kernels.windowed_attention import Capacity, PackedRows
from bandrank_kernels.windowed_attention.capacity import row_bucket
from bandrank_kernels.windowed_attention.cuda.forward import plan_forward


def graph_of(rows: PackedRows) -> Hashable:
    """Returns the key under which a runner keeps the batch's graph on an H100."""
    capacity = Capacity.of(rows)
    plan = plan_forward(
        rows, sparse(4), num_heads=1, head_dim=32, dtype="float16", capability=(9, 0), capacity=capacity
    )
    return capacity.num_rows, capacity.num_candidates, plan.signature


@cache
def graphs() -> set[Hashable]:
    """Returns the keys of all usual layouts."""
    return {graph_of(rows) for rows in usual_layouts(MAX_ROWS)}


@given(st.integers(1, 30), st.integers(32, 220), st.integers(17, 128), st.integers(0, 2**32))
def test_a_usual_request_has_a_graph(query: int, mean: int, count: int, seed: int) -> None:
    """The lengths of candidates may vary around their mean; a request of more than MAX_ROWS rows has no graph."""
    shares = np.random.default_rng(seed).dirichlet(np.ones(count))
    lengths = [mean // 2 + round(mean / 2 * count * share) for share in shares]
    lengths[0] += max(0, count * 32 - sum(lengths))
    rows = PackedRows(offsets([query + 1]), offsets(lengths), np.zeros(count, np.int64))

    assert graph_of(rows) in graphs() or Capacity.of(rows).num_rows > MAX_ROWS


def test_usual_layouts_leave_room_for_others() -> None:
    """Each layout has a graph of its own, its rows fill the bucket, and a hundred graphs are left."""
    layouts = list(usual_layouts(MAX_ROWS))

    assert len(graphs()) == len(layouts) <= MAX_GRAPHS - 100
    assert all(row_bucket(rows.num_rows) == rows.num_rows for rows in layouts)
    assert [rows.num_rows for rows in layouts] == sorted((rows.num_rows for rows in layouts), reverse=True)
    assert layouts[0].num_rows <= MAX_ROWS == row_bucket(GPU_BATCH_ROWS)
