"""The band products as torch operators: checked, dispatched to a backend, differentiated by one another.

With A = band_qk(Q, K):  dQ = band_pv(dA, K),   dK = band_ptv(dA, Q).
With O = band_pv(P, V):  dP = band_qk(dO, V),   dV = band_ptv(P, dO).
With X = band_ptv(P, Y): dP = band_qk(Y, dX),   dY = band_pv(P, dX).
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor
from torch.library import custom_op

from bandrank_kernels.band_products import cuda, reference
from bandrank_kernels.dispatch import Backend, choose_backend

Operator = Callable[..., Tensor]


def band_qk(query: Tensor, key: Tensor, window: int, *, backend: Backend = "auto") -> Tensor:
    """Scores of each row with the rows at most `window` positions away: Q K^T inside the band (the paper's boxed dot).

    query, key: (..., length, dim), of one shape, dtype and device.  Returns (..., length, 2 * window + 1), contiguous:
    band[i, j] = query[i] . key[i + j - window], and 0, which is no score, where that key lies outside the sequence.
    Raises ValueError if the two do not fit together or window < 0, BackendUnavailable.
    """
    return _QK(query, key, window, backend)


def band_pv(band: Tensor, value: Tensor, *, backend: Backend = "auto") -> Tensor:
    """Weighted sums of the rows at most `window` positions away: P V of a band P (the paper's circled dot).

    band: (..., length, 2 * window + 1).  value: (..., length, dim).  Returns (..., length, dim), contiguous:
    out[i] = sum over j of band[i, j] * value[i + j - window].
    Raises ValueError if the two do not fit together or the band has an even number of columns, BackendUnavailable.
    """
    return _PV(band, value, backend)


def band_ptv(band: Tensor, value: Tensor, *, backend: Backend = "auto") -> Tensor:
    """Weighted sums with the band transposed: P^T V, which the gradients of `band_pv` and `band_qk` need.

    band: (..., length, 2 * window + 1).  value: (..., length, dim).  Returns (..., length, dim), contiguous:
    out[k] = sum over i of band[i, k - i + window] * value[i], abs(k - i) <= window.
    Raises the errors of `band_pv`.
    """
    return _PTV(band, value, backend)


def _band(query: Tensor, key: Tensor, window: int) -> Tensor:
    """The result of `band_qk` without contents. Raises its errors."""
    _check_pair("query and key", query, key)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key must have the same dim, got {query.shape[-1]} and {key.shape[-1]}")
    if window < 0:
        raise ValueError(f"window must be at least 0, got {window}")
    return query.new_empty((*query.shape[:-1], 2 * window + 1))


def _sums(band: Tensor, value: Tensor) -> Tensor:
    """The result of `band_pv` and `band_ptv` without contents. Raises their errors."""
    _check_pair("band and value", band, value)
    if band.shape[-1] % 2 == 0:
        raise ValueError(f"a band has 2 * window + 1 columns, an odd number; got {band.shape[-1]}")
    return value.new_empty(value.shape)


def _check_pair(names: str, left: Tensor, right: Tensor) -> None:
    shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
    if left.dim() < 2 or right.dim() < 2:
        raise ValueError(f"{names} must have at least 2 dimensions, got {shapes}")
    if left.shape[:-1] != right.shape[:-1]:
        raise ValueError(f"{names} must agree in all dimensions but the last, got {shapes}")
    if left.dtype != right.dtype or not left.is_floating_point():
        raise ValueError(f"{names} must be of one floating-point dtype, got {left.dtype} and {right.dtype}")
    if left.device != right.device:
        raise ValueError(f"{names} must be on one device, got {left.device} and {right.device}")


def _operator(name: str, schema: str, empty: Operator, by_left: Operator, by_right: Operator) -> Operator:
    """Registers `bandrank::<name>`.

    schema: its arguments except the backend, as torch writes them; the first two are tensors.  empty: checks them and
    makes a result without contents.  by_left, by_right: from the gradient by the result to that by each tensor.
    """

    def run(*arguments: Any) -> Tensor:  # as the schema has them
        *given, backend = arguments
        empty(*given)
        chosen: ModuleType = cuda if choose_backend(backend, given[0].device) == "cuda" else reference
        out: Tensor = getattr(chosen, name)(*given)
        return out

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001  # autograd's context has no type
        ctx.save_for_backward(*inputs[:2])
        ctx.backend = inputs[-1]

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [
            by(gradient, *ctx.saved_tensors, ctx.backend) if needed else None
            for by, needed in zip((by_left, by_right), ctx.needs_input_grad[:2], strict=True)
        ]
        return *gradients, *[None] * (len(ctx.needs_input_grad) - 2)

    schema = f"({schema}, str backend) -> Tensor"
    operator = custom_op(f"bandrank::{name}", run, mutates_args=(), schema=schema)
    operator.register_fake(lambda *arguments: empty(*arguments[:-1]))
    operator.register_autograd(backward, setup_context=keep)
    return operator


_QK = _operator(
    "band_qk",
    "Tensor query, Tensor key, int window",
    _band,
    lambda towards, _, key, backend: band_pv(towards, key, backend=backend),
    lambda towards, query, _, backend: band_ptv(towards, query, backend=backend),
)
_PV = _operator(
    "band_pv",
    "Tensor band, Tensor value",
    _sums,
    lambda towards, band, value, backend: band_qk(towards, value, band.shape[-1] // 2, backend=backend),
    lambda towards, band, _, backend: band_ptv(band, towards, backend=backend),
)
_PTV = _operator(
    "band_ptv",
    "Tensor band, Tensor value",
    _sums,
    lambda towards, band, value, backend: band_qk(value, towards, band.shape[-1] // 2, backend=backend),
    lambda towards, band, _, backend: band_pv(band, towards, backend=backend),
)
