"""Windowed attention of one layer as torch operators: what autograd and torch.compile see of a fused kernel.

The layout of a batch is passed as three tensors in host memory, the fields of `PackedRows`. Plans are cached by their
contents, so that the layers of a batch share one. The forward operator returns what its backward needs: the result and
the log-sum-exp of each row. The backward is not differentiable.
"""

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.operators import register
from bandrank_kernels.windowed_attention.cuda.plan import CudaPlan
from bandrank_kernels.windowed_attention.interface import plan_attention
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.pieces import split
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.vectorized import VectorizedPlan

KEPT_PLANS = 8  # of the batch in the forward pass, and of those whose backward is still to run
_LAYOUT = "Tensor cu_queries, Tensor cu_candidates, Tensor candidate_query, int? window"


def sparse_pattern(window: int | None) -> AttentionPattern:
    """The sparse cross-encoder's pattern, the only fused one: query rows see neither [CLS] nor candidates."""
    return AttentionPattern(window, query_to_cls=False, query_to_candidate=False)


def attend(qkv: Tensor, rows: PackedRows, window: int | None) -> tuple[Tensor, Tensor]:
    """Attention of every row under `sparse_pattern(window)`, and the log-sum-exps of its scores (Schlatt et al. 2024,
    section 3).

    qkv: (num_rows, 3, num_heads, head_dim), any stride between rows.  Returns (num_rows, num_heads, head_dim), and
    (num_rows, num_heads) in float32, or float64 for float64: the logarithm to base 2 of the sum of exp of the scores.
    Differentiable once, by the first result. Raises ValueError if the shapes do not fit.
    """
    layout = (torch.from_numpy(offsets) for offsets in (rows.cu_queries, rows.cu_candidates, rows.candidate_query))
    return FORWARD(qkv, *layout, window)


def _sum_dtype(qkv: Tensor) -> torch.dtype:
    return torch.float64 if qkv.dtype == torch.float64 else torch.float32


def _plan(qkv: Tensor, layout: tuple[Tensor, ...], window: int | None) -> CudaPlan | VectorizedPlan:
    for offsets in layout:
        if offsets.device.type != "cpu" or offsets.dtype != torch.int64:
            raise ValueError(f"a layout is int64 in host memory, got {offsets.dtype} on {offsets.device}")
    contents = tuple(offsets.contiguous().numpy().tobytes() for offsets in layout)
    # A plan's scratch serves one stream at a time.
    stream = torch.cuda.current_stream(qkv.device).cuda_stream if qkv.device.type == "cuda" else 0
    num_rows, plan = _kept_plan(
        contents, window, device=qkv.device, dtype=qkv.dtype, head_dim=qkv.shape[-1], stream=stream
    )
    if qkv.dim() != 4 or qkv.shape[:2] != (num_rows, 3):
        raise ValueError(f"qkv must be ({num_rows}, 3, num_heads, head_dim), got {tuple(qkv.shape)}")
    return plan


@functools.lru_cache(KEPT_PLANS)
def _kept_plan(
    layout: tuple[bytes, ...],
    window: int | None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    stream: int,  # noqa: ARG001  # a part of the cache's key
) -> tuple[int, CudaPlan | VectorizedPlan]:
    rows = PackedRows(*(np.frombuffer(content, np.int64) for content in layout))
    plan = plan_attention(rows, sparse_pattern(window), device=device, dtype=dtype, head_dim=head_dim)
    assert isinstance(plan, CudaPlan | VectorizedPlan), "'auto' is one of these two. This is a bug."
    return rows.num_rows, plan


def _forward(qkv: Tensor, *layout_and_window: Any) -> tuple[Tensor, Tensor]:  # three tensors and a number
    *layout, window = layout_and_window
    plan = _plan(qkv, tuple(layout), window)
    if isinstance(plan, CudaPlan):
        return plan.forward(qkv)
    out, lse = _empty_results(qkv)
    sources = split(qkv)
    for piece in plan.pieces:
        query, key_value = piece.gather(sources)
        piece.write(piece.attend(query, key_value), out)
        scores = piece.heads(query.to(lse.dtype), key_value.to(lse.dtype)).scores()
        piece.write(piece.rows(scores.logsumexp(-1)) / math.log(2), lse)  # to base 2, as in the kernels
    return out, lse


def _empty_results(qkv: Tensor) -> tuple[Tensor, Tensor]:
    out = qkv.new_empty((qkv.shape[0], *qkv.shape[2:]))
    return out, qkv.new_empty(out.shape[:2], dtype=_sum_dtype(qkv))


def _fake_forward(qkv: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _empty_results(qkv)


def _backward(gradient: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, *layout_and_window: Any) -> Tensor:
    """The gradient by qkv."""
    *layout, window = layout_and_window
    plan = _plan(qkv, tuple(layout), window)
    if isinstance(plan, CudaPlan):
        return plan.backward(gradient, qkv, out, lse)
    sums = _sum_dtype(qkv)
    gradient = gradient.to(sums)
    along = (gradient * out.to(sums)).sum(-1)  # from the rounded result, as in the kernels
    result = torch.zeros(qkv.shape, dtype=sums, device=qkv.device)
    sources, results = split(qkv.to(sums)), split(result)
    for piece in plan.pieces:
        heads = piece.heads(*piece.gather(sources))
        row_lse, row_along, towards = (piece.spread(piece.read(rows)) for rows in (lse, along, gradient))
        # No score exceeds the log-sum-exp of its row, except in padding, where that is 0.
        shares = (heads.scores() - row_lse[..., None] * math.log(2)).clamp_(max=0).exp_()
        piece.add(*heads.gradients(shares, towards, row_along), results)
    return result.to(qkv.dtype)


def _fake_backward(gradient: Tensor, qkv: Tensor, *_: Any) -> Tensor:  # noqa: ARG001  # as the operator's schema has them
    return qkv.new_empty(qkv.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # autograd's context has no type
    qkv, *layout, ctx.window = inputs
    ctx.save_for_backward(qkv, *output, *layout)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return BACKWARD(gradient, *ctx.saved_tensors, ctx.window), None, None, None, None


FORWARD = register(
    f"windowed_attention(Tensor qkv, {_LAYOUT}) -> (Tensor, Tensor)",
    _forward,
    _fake_forward,
    keep=_keep,
    backward=_differentiate,
)
BACKWARD = register(
    f"windowed_attention_backward(Tensor gradient, Tensor qkv, Tensor out, Tensor lse, {_LAYOUT}) -> Tensor",
    _backward,
    _fake_backward,
)
