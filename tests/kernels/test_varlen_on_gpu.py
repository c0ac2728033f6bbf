"""Full attention and texts by themselves on a GPU, by torch's FlashAttention."""

import pytest
import torch
from support.layouts import packed_rows
from support.on_gpu import GPU, assert_replays, assert_runs_on_the_current_stream, needs_gpu, poisoned
from torch import Tensor

from bandrank_kernels.arrays import offsets
from bandrank_kernels.trial import why_distrusted
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    AttentionPlan,
    Capacity,
    JoinedPlan,
    TextsPlan,
    plan_local_attention,
    windowed_attention,
)
from bandrank_kernels.windowed_attention.varlen import why_no_varlen

pytestmark = needs_gpu
if torch.cuda.is_available() and why_no_varlen(device=GPU, dtype=torch.float16, head_dim=32) is not None:
    pytest.skip("FlashAttention cannot run here", allow_module_level=True)

FULL = AttentionPattern()
LAYOUTS = [
    packed_rows(queries, candidates, shared=False)
    for queries, candidates in (
        ([11, 0, 35, 1], [[60, 0, 17, 121], [5, 33], [300], [64, 1, 62]]),
        ([10, 200], [[0, 1, 2, 115, 116, 117, 118, 244, 245], [900]]),  # around blocks of 128 rows
        ([0], [[0, 0]]),
        ([3], [[]]),
    )
]
ROWS = LAYOUTS[0]
BARS = {torch.float16: 1e-3, torch.bfloat16: 8e-3}  # weights are rounded to the dtype, and so are results


def random_qkv(num_rows: int, dtype: torch.dtype, head_dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_rows, 3, 3, head_dim, generator=generator).to(GPU, dtype)


def assert_close(actual: Tensor, right: Tensor, bar: float = 1.0) -> None:
    assert actual.isfinite().all()
    assert (actual.double() - right).norm() <= bar * BARS[actual.dtype] * right.norm()


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
@pytest.mark.parametrize("head_dim", [8, 32, 48, 64, 128, 256])
@pytest.mark.parametrize("dtype", BARS)
@pytest.mark.parametrize("bucket", [True, False])
def test_full_attention_equals_the_reference(bucket: bool, dtype: torch.dtype, head_dim: int, layout: int) -> None:
    """Unused rows and candidates of a bucket change nothing, even if these rows hold NaN; gradients are right, too."""
    rows = LAYOUTS[layout]
    capacity = Capacity.of(rows) if bucket else None
    plan, room = JoinedPlan(rows, device=GPU, capacity=capacity), capacity or Capacity.exactly(rows)
    qkv = random_qkv(rows.num_rows, dtype, head_dim).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    right = windowed_attention(exact, rows, FULL, backend="reference")
    given = torch.cat([qkv, qkv.new_full((room.num_rows - rows.num_rows, *qkv.shape[1:]), torch.nan)])
    with poisoned():
        whole, again = (plan.attend(given)[: rows.num_rows] for _ in range(2))
        first = plan.attend_first(given, room.num_candidates)

    assert torch.equal(whole, again)
    assert_close(whole, right)
    assert_close(first[: rows.num_candidates], right[: rows.num_candidates])
    if rows.num_rows and not bucket:
        towards = right.detach().flip(0)
        gradient, right_gradient = (
            torch.autograd.grad(out, of, towards.to(out.dtype))[0] for out, of in ((whole, qkv), (right, exact))
        )
        assert_close(gradient, right_gradient, bar=2)


@pytest.mark.parametrize("lengths", [[128, 0, 1, 129, 300, 64], [1, 1, 0, 1], [77] * 20, [0, 0], []])
@pytest.mark.parametrize("window", [0, 4, 64, None])
@pytest.mark.parametrize("dtype", BARS)
def test_texts_equal_the_reference(dtype: torch.dtype, window: int | None, lengths: list[int]) -> None:
    """Texts by themselves; where none is empty, also the last layer for one row of each; and heads that share keys."""
    cu_seqlens, qkv = offsets(lengths), random_qkv(sum(lengths), dtype, 32)
    dense = plan_local_attention(
        cu_seqlens, 300 if window is None else window, device=GPU, dtype=torch.float64, head_dim=32, backend="reference"
    )
    right, plan = dense.attend(qkv.double()), TextsPlan(cu_seqlens, device=GPU, window=window)
    query, key, value = qkv.unbind(1)
    with poisoned():
        assert_close(plan.attend(qkv), right)
        shared = plan.attend_grouped(query, key[:, :1], value[:, :1])
        assert_close(shared, AttentionPlan.attend_grouped(plan, query, key[:, :1], value[:, :1]).double())
        if window is None and all(lengths) and lengths:
            last = torch.from_numpy(cu_seqlens[1:] - 1).to(GPU)
            assert_close(plan.attend_each(qkv, last), right[last])


def test_a_graph_replays_what_was_launched() -> None:
    plan, qkv = JoinedPlan(ROWS, device=GPU), random_qkv(ROWS.num_rows, torch.float16, 32)
    assert_replays(lambda: [plan.attend(qkv), plan.attend_first(qkv, ROWS.num_candidates)], qkv)
    assert_runs_on_the_current_stream(lambda late: [plan.attend(late)], qkv)


@pytest.mark.parametrize("pattern", [FULL, AttentionPattern.apart()])
@pytest.mark.parametrize("head_dim", [32, 48, 128])
@pytest.mark.parametrize("dtype", BARS)
def test_it_is_trusted(dtype: torch.dtype, head_dim: int, pattern: AttentionPattern) -> None:
    assert why_distrusted(pattern, device=GPU, dtype=dtype, num_heads=3, head_dim=head_dim) is None
