"""Full attention and texts by themselves on a GPU: torch's FlashAttention over sequences end to end."""

import numpy as np
import pytest
import torch
from support.layouts import packed_rows
from support.on_gpu import GPU, assert_replays, assert_runs_on_the_current_stream, needs_gpu, poisoned
from torch import Tensor

from bandrank_kernels.arrays import offsets
from bandrank_kernels.transfer import to_device
from bandrank_kernels.trial import why_distrusted
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    AttentionPlan,
    Capacity,
    JoinedPlan,
    PackedRows,
    TextsPlan,
    plan_attention,
    plan_local_attention,
    windowed_attention,
)
from bandrank_kernels.windowed_attention.varlen import why_no_varlen

pytestmark = needs_gpu
if torch.cuda.is_available() and why_no_varlen(device=GPU, dtype=torch.float16, head_dim=32) is not None:
    pytest.skip("FlashAttention cannot run here", allow_module_level=True)

FULL, APART = AttentionPattern(), AttentionPattern.apart()
LAYOUTS = [
    packed_rows(queries, candidates, shared=False)
    for queries, candidates in (
        ([11, 0, 35, 1], [[60, 0, 17, 121], [5, 33], [300], [64, 1, 62]]),
        ([10], [[0, 1, 2, 7, 30, 63, 64, 115, 116, 117, 118, 244, 245]]),  # around blocks of 128 rows
        ([0], [[0, 0]]),
        ([200, 5], [[900, 40], []]),
        ([3, 0], [[], []]),
    )
]
ROWS = LAYOUTS[0]
LENGTHS = [[128, 0, 1, 129, 300, 64], [1, 1, 0, 1], [77] * 200, [0, 0], []]
# Weights of a softmax are rounded to the dtype, and so are results.
BARS = {torch.float16: 1e-3, torch.bfloat16: 8e-3}


def plan(rows: PackedRows, dtype: torch.dtype, head_dim: int, capacity: Capacity | None = None) -> AttentionPlan:
    """Returns the plan that "cuda" names, so that no fallback replaces it."""
    return plan_attention(rows, FULL, device=GPU, dtype=dtype, head_dim=head_dim, backend="cuda", capacity=capacity)


def random_qkv(num_rows: int, dtype: torch.dtype, head_dim: int, num_heads: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_rows, 3, num_heads, head_dim, generator=generator).to(GPU, dtype)


def assert_close(actual: Tensor, right: Tensor) -> None:
    assert actual.isfinite().all()
    assert (actual.double() - right).norm() <= BARS[actual.dtype] * right.norm()


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
@pytest.mark.parametrize("head_dim", [8, 32, 48, 64, 128, 256])
@pytest.mark.parametrize("dtype", BARS)
@pytest.mark.parametrize("bucket", [True, False])
def test_full_attention_equals_the_reference(bucket: bool, dtype: torch.dtype, head_dim: int, layout: int) -> None:
    """Unused rows and candidates of a bucket change nothing, even if these rows hold NaN."""
    rows = LAYOUTS[layout]
    capacity = Capacity.of(rows) if bucket else None
    planned = plan(rows, dtype, head_dim, capacity)
    assert isinstance(planned, JoinedPlan)
    qkv = random_qkv(rows.num_rows, dtype, head_dim)
    right = windowed_attention(qkv.double(), rows, FULL, backend="reference")
    room = capacity or Capacity.exactly(rows)
    given = torch.cat([qkv, qkv.new_full((room.num_rows - rows.num_rows, *qkv.shape[1:]), torch.nan)])
    with poisoned():
        whole, again = (planned.attend(given)[: rows.num_rows] for _ in range(2))
        first = planned.attend_first(given, room.num_candidates)[: rows.num_candidates]

    assert torch.equal(whole, again)
    assert_close(whole, right)
    assert_close(first, right[: rows.num_candidates])


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("window", [0, 4, 64, None])
@pytest.mark.parametrize("dtype", BARS)
def test_texts_equal_the_reference(dtype: torch.dtype, window: int | None, lengths: list[int]) -> None:
    """Of the texts by themselves, also the last layer for one row of each."""
    cu_seqlens, head_dim = offsets(lengths), 32
    qkv = random_qkv(sum(lengths), dtype, head_dim)
    rows = PackedRows(cu_seqlens, offsets([]), np.zeros(0, np.int64))
    if window is None:
        right = windowed_attention(qkv.double(), rows, APART, backend="vectorized")
        planned = plan_attention(rows, APART, device=GPU, dtype=dtype, head_dim=head_dim, backend="cuda")
    else:
        local = {"device": GPU, "head_dim": head_dim}
        exact = plan_local_attention(cu_seqlens, window, dtype=torch.float64, backend="vectorized", **local)
        right = exact.attend(qkv.double())
        planned = plan_local_attention(cu_seqlens, window, dtype=dtype, backend="cuda", **local)
    assert isinstance(planned, TextsPlan)
    with poisoned():
        assert_close(planned.attend(qkv), right)
        if window is None and all(lengths) and lengths:
            last = torch.from_numpy(cu_seqlens[1:] - 1).to(GPU)
            assert_close(planned.attend_each(qkv, last), right[last])


@pytest.mark.parametrize("lengths", [[5, 0, 130], [1, 0, 1]])
def test_heads_share_keys(lengths: list[int]) -> None:
    """As copies of the keys give it, up to rounding."""
    query = random_qkv(sum(lengths), torch.float16, 64, num_heads=8)[:, 0]
    key, value = random_qkv(sum(lengths), torch.float16, 64, num_heads=2)[:, 1:].unbind(1)
    planned = TextsPlan(offsets(lengths), device=GPU)

    shared = planned.attend_grouped(query, key, value)

    assert_close(shared, AttentionPlan.attend_grouped(planned, query, key, value).double())


@pytest.mark.parametrize("dtype", BARS)
def test_gradients_equal_the_reference(dtype: torch.dtype) -> None:
    qkv = random_qkv(ROWS.num_rows, dtype, 32).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    out, right = plan(ROWS, dtype, 32).attend(qkv), windowed_attention(exact, ROWS, FULL, backend="reference")
    towards = right.detach().flip(0).to(dtype)
    (gradient,) = torch.autograd.grad(out, qkv, towards)
    (right_gradient,) = torch.autograd.grad(right, exact, towards.double())

    assert (gradient.double() - right_gradient).norm() <= 2 * BARS[dtype] * right_gradient.norm()


def test_a_graph_replays_what_was_launched() -> None:
    planned, qkv = plan(ROWS, torch.float16, 32), random_qkv(ROWS.num_rows, torch.float16, 32)
    assert_replays(lambda: [planned.attend(qkv), planned.attend_first(qkv, ROWS.num_candidates)], qkv)


def test_one_graph_serves_all_batches_of_a_bucket() -> None:
    """The graph reads the tables of whichever batch was written last."""
    batches = [packed_rows([5], [[9] * 13], shared=False), packed_rows([3, 4], [[75, 0], [40] * 2], shared=False)]
    capacity = Capacity.of(packed_rows([9], [[9] * 16], shared=False))
    plans = [plan(rows, torch.float16, 32, capacity) for rows in batches]
    tables, qkv = to_device(plans[0].host_tables, GPU), random_qkv(capacity.num_rows, torch.float16, 32)
    bound, graph = plans[0].bind(tables), torch.cuda.CUDAGraph()
    bound.attend(qkv)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = bound.attend(qkv)
    for rows, planned in zip(batches, plans, strict=True):
        for table, host in zip(tables, planned.host_tables, strict=True):
            table.copy_(host)
        graph.replay()
        real = qkv[: rows.num_rows].double()
        assert_close(out[: rows.num_rows], windowed_attention(real, rows, FULL, backend="reference"))


def test_it_runs_on_the_current_stream_and_waits_for_nothing() -> None:
    planned, qkv = plan(ROWS, torch.float16, 32), random_qkv(ROWS.num_rows, torch.float16, 32)
    assert_runs_on_the_current_stream(lambda late: [planned.attend(late)], qkv)


@pytest.mark.parametrize("pattern", [FULL, APART])
@pytest.mark.parametrize("head_dim", [32, 48, 128])
@pytest.mark.parametrize("dtype", BARS)
def test_it_is_trusted(dtype: torch.dtype, head_dim: int, pattern: AttentionPattern) -> None:
    assert why_distrusted(pattern, device=GPU, dtype=dtype, num_heads=3, head_dim=head_dim) is None
