"""The parts of a layer, each callable with any backend."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.shape import Shape
from bandrank_kernels import Backend
from bandrank_kernels.pooled_scores import pooled_scores
from bandrank_kernels.row_norms import Addend, add_norm, embed_rows
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, plan_attention

EPS = 1e-12  # BERT's

Call = Callable[..., list[Tensor]]


@dataclass(frozen=True)
class Part:
    """A part of a layer. draw: inputs by a seed.  prepare: a call on inputs by a backend; calls share no scratch."""

    name: str
    draw: Callable[[int], list[Tensor]]
    prepare: Callable[[Backend], Call]


def attention(lab: Lab, shape: Shape) -> Part:
    """Attention of all rows."""

    def draw(seed: int) -> list[Tensor]:
        return [lab.randn(shape.rows().num_rows, 3, shape.num_heads, shape.head_dim, seed=seed)]

    def prepare(backend: Backend) -> Call:
        plan = _plan(lab, shape, backend)
        return lambda qkv: [plan.attend(qkv)]

    return Part(f"attention {shape}", draw, prepare)


def last_layer(lab: Lab, shape: Shape) -> Part:
    """Attention of [CLS] alone, with absorbed projections, from queries and rows."""

    def draw(seed: int) -> list[Tensor]:
        query = lab.randn(shape.num_candidates, shape.num_heads, shape.hidden, seed=seed)
        return [query, lab.randn(shape.rows().num_rows, shape.hidden, seed=seed + 1)]

    def prepare(backend: Backend) -> Call:
        plan = _plan(lab, shape, backend)
        return lambda query, rows: [plan.attend_cls(query, rows, shape.head_dim**-0.5)]

    return Part(f"last layer {shape}", draw, prepare)


def norms(lab: Lab, num_rows: int, hidden_size: int) -> Part:
    """LayerNorm of embeddings, and of a residual sum."""

    def draw(seed: int) -> list[Tensor]:
        table, residual = (lab.randn(num_rows, hidden_size, seed=seed + step) for step in (0, 1))
        weight, bias = (lab.randn(hidden_size, seed=seed + step) for step in (2, 3))
        return [table, residual, weight, bias, torch.arange(num_rows).flip(0).to(lab.device)]

    def both(  # noqa: PLR0917  # the inputs of a part
        backend: Backend, table: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, numbers: Tensor
    ) -> list[Tensor]:
        word, other = Addend(table, numbers), Addend(residual, numbers)
        embedded = embed_rows(word, other, word, weight, bias, eps=EPS, backend=backend)
        return [embedded, add_norm(table, residual, weight, bias, eps=EPS, backend=backend)]

    return Part(f"norms of {num_rows} rows of {hidden_size}", draw, lambda backend: partial(both, backend))


def head(lab: Lab, num_rows: int, hidden_size: int) -> Part:
    """Scores of pooled rows."""

    def draw(seed: int) -> list[Tensor]:
        rows, weight = (
            lab.randn(length, hidden_size, seed=seed + step) for step, length in enumerate((num_rows, hidden_size))
        )
        bias, vector = (lab.randn(hidden_size, seed=seed + step).float() for step in (2, 3))
        return [rows, weight * hidden_size**-0.5, bias, vector, bias[:1]]

    def prepare(backend: Backend) -> Call:
        return lambda *inputs: [pooled_scores(*inputs, backend=backend)]

    return Part(f"head of {num_rows} rows of {hidden_size}", draw, prepare)


def up(lab: Lab, num_rows: int, hidden_size: int) -> Part:
    """The feed-forward's first layer. GELU is fused, in its tanh form; in plain torch it is exact and separate."""

    def draw(seed: int) -> list[Tensor]:
        rows, weight = (
            lab.randn(num_rows, hidden_size, seed=seed),
            lab.randn(4 * hidden_size, hidden_size, seed=seed + 1),
        )
        return [rows, weight * hidden_size**-0.5, lab.randn(4 * hidden_size, seed=seed + 2)]

    def prepare(backend: Backend) -> Call:
        if backend == "vectorized":
            return lambda rows, weight, bias: [gelu(linear(rows, weight, bias))]
        return lambda rows, weight, bias: [torch._addmm_activation(bias, rows, weight.T, use_gelu=True)]

    return Part(f"up and GELU of {num_rows} rows of {hidden_size}", draw, prepare)


def _plan(lab: Lab, shape: Shape, backend: Backend) -> AttentionPlan:
    """The plan of this backend: requested by name, it cannot fall back to another."""
    rows, pattern = shape.rows(), AttentionPattern.sparse(shape.window)
    return plan_attention(rows, pattern, device=lab.device, dtype=lab.dtype, head_dim=shape.head_dim, backend=backend)
