"""Windowed attention as a torch operator: results, log-sum-exps and gradients are those of the reference."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.layouts import CPU, EXACT, HEAD_DIM, layouts, packed_rows, random_qkv
from torch import Tensor

from bandrank_kernels.windowed_attention import PackedRows, ops, plan_attention
from bandrank_kernels.windowed_attention.reference import dense_mask

ROWS = packed_rows([3, 7, 1], [[0, 20, 9], [1, 63], [40]], shared=True)


def check(rows: PackedRows, window: int | None) -> None:
    """Result, log-sum-exps and gradients are those of the reference."""
    qkv = random_qkv(rows).requires_grad_()
    out, lse = ops.attend(qkv, rows, window)
    pattern = ops.sparse_pattern(window)
    plan = plan_attention(rows, pattern, device=CPU, dtype=qkv.dtype, head_dim=HEAD_DIM, backend="reference")
    expected = plan.attend(qkv)
    towards = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    scores = torch.einsum("ihd,jhd->hij", qkv[:, 0], qkv[:, 1]) * qkv.shape[-1] ** -0.5
    sums = scores.masked_fill(~dense_mask(rows, pattern), -torch.inf).logsumexp(-1).T / math.log(2)

    assert not lse.requires_grad
    torch.testing.assert_close(out, expected, rtol=0, atol=EXACT)
    torch.testing.assert_close(lse, sums.detach(), rtol=0, atol=EXACT)
    found, right = (torch.autograd.grad(result, qkv, towards)[0] for result in (out, expected))
    torch.testing.assert_close(found, right, rtol=0, atol=10 * EXACT)


@pytest.mark.parametrize("window", [0, 1, 4, 64, None])
def test_the_operator_is_the_reference(window: int | None) -> None:
    """Candidates and queries of many lengths, empty ones too."""
    check(ROWS, window)


@settings(max_examples=30)
@given(st.data(), st.sampled_from([0, 1, 3, 16, None]))
def test_the_operator_is_the_reference_on_any_layout(data: st.DataObject, window: int | None) -> None:
    """Whatever shares a query with whom."""
    check(data.draw(layouts(ops.sparse_pattern(window)).filter(lambda rows: rows.num_rows > 0)), window)


@pytest.mark.parametrize("window", [4, None])
def test_gradients_of_large_scores_are_numbers(window: int | None) -> None:
    """Rows that only pad a group have scores too, beyond what float32 can take to the power of."""
    qkv = (40 * random_qkv(ROWS)).float().requires_grad_()
    (gradient,) = torch.autograd.grad(ops.attend(qkv, ROWS, window)[0].sum(), qkv)

    assert gradient.isfinite().all()


def arguments(rows: PackedRows, qkv: Tensor, window: int | None) -> tuple[object, ...]:
    """Of the operator."""
    layout = (rows.cu_queries, rows.cu_candidates, rows.candidate_query)
    return qkv, *(torch.from_numpy(offsets) for offsets in layout), window


def test_operators_keep_their_promises_to_torch() -> None:
    """Schemas, fake tensors, autograd registration, dynamic shapes; and difference quotients."""
    rows, window = packed_rows([2, 1], [[0, 3], [1]], shared=True), 1
    qkv = random_qkv(rows).requires_grad_()
    forward, backward = torch.ops.bandrank.windowed_attention, torch.ops.bandrank.windowed_attention_backward
    out, lse = ops.attend(qkv.detach(), rows, window)
    plain = qkv.detach()

    assert set(torch.library.opcheck(forward.default, arguments(rows, qkv, window)).values()) == {"SUCCESS"}
    given = (out, plain, out, lse, *arguments(rows, plain, window)[1:])
    assert set(torch.library.opcheck(backward.default, given).values()) == {"SUCCESS"}
    assert torch.autograd.gradcheck(lambda qkv: ops.attend(qkv, rows, window)[0], qkv)


def test_a_compiled_function_is_the_same_function() -> None:
    """In one graph, for more than one batch."""
    compiled = torch.compile(
        lambda *given: torch.ops.bandrank.windowed_attention(*given)[0].square(), fullgraph=True, backend="aot_eager"
    )
    for rows in (ROWS, packed_rows([4], [[5, 30]], shared=True)):
        qkv = random_qkv(rows).requires_grad_()
        plain, fast = ops.attend(qkv, rows, 4)[0].square(), compiled(*arguments(rows, qkv, 4))

        torch.testing.assert_close(fast, plain, rtol=0, atol=0)
        torch.testing.assert_close(
            torch.autograd.grad(fast.sum(), qkv), torch.autograd.grad(plain.sum(), qkv), rtol=0, atol=EXACT
        )


def test_half_precision_keeps_its_sums() -> None:
    """Log-sum-exps are float32, as exact as that allows on the rounded inputs; a gradient has its input's dtype."""
    qkv = random_qkv(ROWS).bfloat16().requires_grad_()
    out, lse = ops.attend(qkv, ROWS, 4)
    exact_out, exact_lse = ops.attend(qkv.double(), ROWS, 4)
    (gradient,) = torch.autograd.grad(out.sum(), qkv)

    assert (out.dtype, lse.dtype, gradient.dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)
    torch.testing.assert_close(lse.double(), exact_lse.detach(), rtol=0, atol=1e-5)
    assert (out.double() - exact_out).norm() <= 4e-3 * exact_out.norm()


def test_what_does_not_fit_is_refused() -> None:
    """Rows of another batch, and a layout that is not in host memory's own numbers."""
    qkv = random_qkv(ROWS)
    with pytest.raises(ValueError, match=rf"qkv must be \({ROWS.num_rows}, 3, num_heads, head_dim\), got "):
        ops.attend(qkv[:-1], ROWS, 4)
    with pytest.raises(ValueError, match=r"a layout is int64 in host memory, got torch\.int32 on cpu"):
        torch.ops.bandrank.windowed_attention(qkv, *[torch.zeros(1, dtype=torch.int32)] * 3, 4)
