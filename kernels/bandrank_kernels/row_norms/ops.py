"""The two operations as torch operators: checked, dispatched to a backend, differentiable once.

The backward computes the sum again, in plain torch and in the dtype of the rows; the rest is LayerNorm's backward.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bandrank_kernels.dispatch import Backend, choose_backend
from bandrank_kernels.operators import register
from bandrank_kernels.row_norms import cuda, reference, vectorized
from bandrank_kernels.row_norms.addends import Addend, check

_BACKENDS = {"reference": reference, "vectorized": vectorized, "cuda": cuda}

AddendsOf = Callable[..., list[Addend]]  # takes the arguments that come before the norm's


def _added(x: Tensor, residual: Tensor) -> list[Addend]:
    return [Addend(x), Addend(residual)]


def _embedded(*tables: Tensor) -> list[Addend]:
    return [Addend(rows, numbers) for rows, numbers in zip(tables[:3], tables[3:], strict=True)]


@functools.cache  # called twice in every layer, always with the same result
def _backend(backend: Backend, device: torch.device, dtype: torch.dtype, hidden_size: int) -> ModuleType:
    return _BACKENDS[choose_backend(backend, device, unsupported=cuda.why_unsupported(dtype, hidden_size))]


def _run(addends_of: AddendsOf, *arguments: Any) -> Tensor:  # an operator's, as its schema has them
    *summed, weight, bias, eps, backend = arguments
    addends = addends_of(*summed)
    check(addends, weight, bias)
    chosen = _backend(backend, weight.device, weight.dtype, len(weight))
    out: Tensor = chosen.norm_of_sum(addends, weight, bias, eps)
    return out


def _fake(addends_of: AddendsOf, *arguments: Any) -> Tensor:  # likewise
    *summed, weight, bias, _, _ = arguments
    addends = addends_of(*summed)
    check(addends, weight, bias)
    out: Tensor = weight.new_empty((addends[0].total, weight.shape[0]))
    return out


# Autograd's context has no type.
def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    *tensors, ctx.eps, _ = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(addends_of: AddendsOf, ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    *summed, weight, bias = ctx.saved_tensors
    addends = addends_of(*summed)
    rows = vectorized.sum_of(addends)
    _, mean, rstd = torch.native_layer_norm(rows, weight.shape, weight, bias, ctx.eps)
    by_sum, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
        gradient, rows, weight.shape, mean, rstd, weight, bias, [True, True, True]
    )
    by_addends = [_scatter(by_sum, addend) for addend in addends]
    by_numbers = [None] * (len(summed) - len(addends))
    return *by_addends, *by_numbers, by_weight, by_bias, None, None


def _scatter(by_sum: Tensor, addend: Addend) -> Tensor:
    """The gradient by an addend's rows, of which one may be in the sum many times."""
    rows, numbers = addend
    if numbers is None:
        return by_sum
    # No padding row, no division by how often a row is there.
    by_rows: Tensor = torch.ops.aten.embedding_dense_backward(by_sum, numbers, rows.shape[0], -1, False)  # noqa: FBT003
    return by_rows


def _register(name: str, summed: str, addends_of: AddendsOf) -> Callable[..., Tensor]:
    return register(
        f"{name}({summed}, Tensor weight, Tensor bias, float eps, str backend) -> Tensor",
        functools.partial(_run, addends_of),
        functools.partial(_fake, addends_of),
        keep=_keep,
        backward=functools.partial(_differentiate, addends_of),
    )


_TABLES = "Tensor word, Tensor token_type, Tensor position, Tensor? ids, Tensor? token_types, Tensor? positions"
ADD_NORM = _register("add_norm", "Tensor x, Tensor residual", _added)
EMBED_ROWS = _register("embed_rows", _TABLES, _embedded)
