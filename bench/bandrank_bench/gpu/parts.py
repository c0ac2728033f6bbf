"""What a layer launches, one part at a time, each callable by any backend in any dtype."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.shape import Shape
from bandrank_kernels import Backend
from bandrank_kernels.band_products import band_ptv, band_pv, band_qk
from bandrank_kernels.row_norms import Addend, add_norm, embed_rows
from bandrank_kernels.windowed_attention import AttentionPlan, PackedRows, plan_attention
from bandrank_kernels.windowed_attention.ops import sparse_pattern

EPS = 1e-12  # BERT's

Call = Callable[..., list[Tensor]]


@dataclass(frozen=True)
class Part:
    """draw: inputs of a seed in a dtype.  prepare: a call on such inputs by a backend; calls share no scratch."""

    name: str
    draw: Callable[[int, torch.dtype], list[Tensor]]
    prepare: Callable[[Backend, torch.dtype], Call]


def attention(lab: Lab, rows: PackedRows, window: int | None, num_heads: int, head_dim: int) -> Part:
    """Attention of all rows."""

    def prepare(backend: Backend, dtype: torch.dtype) -> Call:
        plan = plan_of(lab, rows, window, head_dim, backend, dtype)
        return lambda qkv: [plan.attend(qkv)]

    return Part(
        f"attention {rows.num_rows} rows w={window} {num_heads}x{head_dim}",
        lambda seed, dtype: [lab.randn(rows.num_rows, 3, num_heads, head_dim, dtype=dtype, seed=seed)],
        prepare,
    )


def attention_of(lab: Lab, shape: Shape) -> Part:
    """The same of one request."""
    return attention(lab, shape.rows(), shape.window, shape.num_heads, shape.head_dim)


def last_layer(lab: Lab, rows: PackedRows, num_heads: int, hidden_size: int, window: int = 4) -> Part:
    """Attention of [CLS] alone, absorbed: by queries and rows."""

    def prepare(backend: Backend, dtype: torch.dtype) -> Call:
        plan = plan_of(lab, rows, window, 32, backend, dtype)
        return lambda query, hidden: [plan.attend_cls(query, hidden, 2 * hidden_size**-0.5)]

    return Part(
        f"last layer {rows.num_rows} rows {num_heads} heads of {hidden_size}",
        lambda seed, dtype: [
            lab.randn(rows.num_candidates, num_heads, hidden_size, dtype=dtype, seed=seed),
            lab.randn(rows.num_rows, hidden_size, dtype=dtype, seed=seed + 1),
        ],
        prepare,
    )


def bands(lab: Lab, length: int, dim: int, window: int) -> Part:
    """The three products inside a band, which holds NaN where nobody may look."""

    def draw(seed: int, dtype: torch.dtype) -> list[Tensor]:
        query, key = (lab.randn(3, 2, length, dim, dtype=dtype, seed=seed + step) for step in (0, 1))
        band = lab.randn(3, 2, length, 2 * window + 1, dtype=dtype, seed=seed + 2)
        other = torch.arange(length)[:, None] + torch.arange(-window, window + 1)
        outside = (other < 0) | (other >= length)
        return [query, key, band.masked_fill_(outside.to(lab.device), torch.nan)]

    def products(backend: Backend, query: Tensor, key: Tensor, band: Tensor) -> list[Tensor]:
        return [
            band_qk(query, key, window, backend=backend),
            band_pv(band, key, backend=backend),
            band_ptv(band, key, backend=backend),
        ]

    return Part(f"band products {length} rows of {dim} w={window}", draw, lambda backend, _: partial(products, backend))


def norms(lab: Lab, num_rows: int, hidden_size: int) -> Part:
    """LayerNorm of rows of a table, and of their sum with others."""

    def draw(seed: int, dtype: torch.dtype) -> list[Tensor]:
        table, residual = (lab.randn(num_rows, hidden_size, dtype=dtype, seed=seed + step) for step in (0, 1))
        weight, bias = (lab.randn(hidden_size, dtype=dtype, seed=seed + step) for step in (2, 3))
        return [table, residual, weight, bias, torch.arange(num_rows).flip(0).to(lab.device)]

    def both(  # noqa: PLR0917  # the inputs of a part
        backend: Backend, table: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, numbers: Tensor
    ) -> list[Tensor]:
        word, other = Addend(table, numbers), Addend(residual, numbers)
        return [
            embed_rows(word, other, word, weight, bias, eps=EPS, backend=backend),
            add_norm(table, residual, weight, bias, eps=EPS, backend=backend),
        ]

    return Part(f"norms of {num_rows} rows of {hidden_size}", draw, lambda backend, _: partial(both, backend))


def plan_of(  # noqa: PLR0917  # a layout and what computes on it
    lab: Lab, rows: PackedRows, window: int | None, head_dim: int, backend: Backend, dtype: torch.dtype
) -> AttentionPlan:
    """By this backend and no other: nothing may take its place."""
    return plan_attention(
        rows, sparse_pattern(window), device=lab.device, dtype=dtype, head_dim=head_dim, backend=backend
    )
