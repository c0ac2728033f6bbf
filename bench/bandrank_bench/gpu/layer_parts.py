"""What a layer launches, as tensors to one tensor: attention, that of [CLS] alone in the last layer, and norms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.shape import Shape
from bandrank_kernels import Backend
from bandrank_kernels.row_norms import Addend, add_norm, embed_rows
from bandrank_kernels.windowed_attention import AttentionPlan, plan_attention
from bandrank_kernels.windowed_attention.ops import sparse_pattern

EPS = 1e-12  # BERT's


@dataclass(frozen=True)
class Part:
    """draw: its inputs, of a seed.  prepare: a call that shares no scratch with any other."""

    name: str
    draw: Callable[[int], Sequence[Tensor]]
    prepare: Callable[[], Callable[..., Tensor]]


def attention(lab: Lab, shape: Shape) -> Part:
    """Of all rows."""
    return Part(f"attention {shape}", lambda seed: [qkv_of(lab, shape, seed)], lambda: plan_of(lab, shape).attend)


def last_layer(lab: Lab, shape: Shape) -> Part:
    """Of [CLS] alone, absorbed: by queries and rows."""

    def draw(seed: int) -> list[Tensor]:
        query = lab.randn(shape.num_candidates, shape.num_heads, shape.hidden, seed=seed)
        return [query, lab.randn(shape.rows().num_rows, shape.hidden, seed=seed + 1)]

    return Part(
        f"last layer {shape}", draw, lambda: partial(plan_of(lab, shape).attend_cls, scale=shape.head_dim**-0.5)
    )


def norms(lab: Lab, num_rows: int, hidden_size: int) -> Part:
    """Both of them, as `norm_rows` calls them."""

    def draw(seed: int) -> list[Tensor]:
        table, residual = (lab.randn(num_rows, hidden_size, seed=seed + step) for step in (0, 1))
        weight, bias = (lab.randn(hidden_size, seed=seed + step) for step in (2, 3))
        return [lab.randn(num_rows, seed=seed).argsort(), table, residual, weight, bias]

    return Part(f"norms of {num_rows} rows of {hidden_size}", draw, lambda: partial(norm_rows, lab.backend))


def norm_rows(  # noqa: PLR0917  # what a part is called with
    backend: Backend, numbers: Tensor, table: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """Rows of a table embedded, and others added to them: LayerNorm of three addends, and of two.

    numbers: (total,) int64.  table: (n, hidden_size).  residual: (total, hidden_size).
    """
    rows = Addend(table, numbers)
    embedded = embed_rows(rows, rows, rows, weight, bias, eps=EPS, backend=backend)
    return add_norm(embedded, residual, weight, bias, eps=EPS, backend=backend)


def plan_of(lab: Lab, shape: Shape, backend: Backend | None = None) -> AttentionPlan:
    """For the timed dtype, by the backend that is under test and no other, unless another is named."""
    return plan_attention(
        shape.rows(),
        sparse_pattern(shape.window),
        device=lab.device,
        dtype=lab.dtype,
        head_dim=shape.head_dim,
        backend=backend or lab.backend,
    )


def qkv_of(lab: Lab, shape: Shape, seed: int = 0) -> Tensor:
    """(num_rows, 3, num_heads, head_dim)."""
    return lab.randn(shape.rows().num_rows, 3, shape.num_heads, shape.head_dim, seed=seed)
