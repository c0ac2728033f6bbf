"""The band products as torch operators: checked, dispatched to a backend, differentiated by one another.

With A = band_qk(Q, K):  dQ = band_pv(dA, K),   dK = band_ptv(dA, Q).
With O = band_pv(P, V):  dP = band_qk(dO, V),   dV = band_ptv(P, dO).
With X = band_ptv(P, Y): dP = band_qk(Y, dX),   dY = band_pv(P, dX).
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bandrank_kernels.band_products import cuda, reference, vectorized
from bandrank_kernels.dispatch import Backend, choose_backend
from bandrank_kernels.operators import register

_BACKENDS = {"reference": reference, "vectorized": vectorized, "cuda": cuda}


def _backend(backend: Backend, device: torch.device) -> ModuleType:
    return _BACKENDS[choose_backend(backend, device)]


def _check_pair(names: str, left: Tensor, right: Tensor) -> None:
    if left.dim() < 2 or right.dim() < 2:
        raise ValueError(f"{names} must have at least 2 dimensions, got {tuple(left.shape)} and {tuple(right.shape)}")
    if left.shape[:-1] != right.shape[:-1]:
        raise ValueError(
            f"{names} must agree in all dimensions but the last, got {tuple(left.shape)} and {tuple(right.shape)}"
        )
    if left.dtype != right.dtype or not left.is_floating_point():
        raise ValueError(f"{names} must be of one floating-point dtype, got {left.dtype} and {right.dtype}")
    if left.device != right.device:
        raise ValueError(f"{names} must be on one device, got {left.device} and {right.device}")


def _check_qk(query: Tensor, key: Tensor, window: int) -> None:
    _check_pair("query and key", query, key)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key must have the same dim, got {query.shape[-1]} and {key.shape[-1]}")
    if window < 0:
        raise ValueError(f"window must be at least 0, got {window}")


def _check_band(band: Tensor, value: Tensor) -> None:
    _check_pair("band and value", band, value)
    if band.shape[-1] % 2 == 0:
        raise ValueError(f"a band has 2 * window + 1 columns, an odd number; got {band.shape[-1]}")


def _window(band: Tensor) -> int:
    return band.shape[-1] // 2


def _run_qk(query: Tensor, key: Tensor, window: int, backend: Backend = "auto") -> Tensor:
    _check_qk(query, key, window)
    band: Tensor = _backend(backend, query.device).band_qk(query, key, window)
    return band


def _run_pv(band: Tensor, value: Tensor, backend: Backend = "auto") -> Tensor:
    _check_band(band, value)
    sums: Tensor = _backend(backend, band.device).band_pv(band, value)
    return sums


def _run_ptv(band: Tensor, value: Tensor, backend: Backend = "auto") -> Tensor:
    _check_band(band, value)
    sums: Tensor = _backend(backend, band.device).band_ptv(band, value)
    return sums


def _fake_qk(query: Tensor, key: Tensor, window: int, backend: Backend = "auto") -> Tensor:  # noqa: ARG001
    _check_qk(query, key, window)
    return query.new_empty((*query.shape[:-1], 2 * window + 1))


def _fake_sums(band: Tensor, value: Tensor, backend: Backend = "auto") -> Tensor:  # noqa: ARG001
    _check_band(band, value)
    return value.new_empty(value.shape)


# Autograd's context has no type.
def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:2])
    ctx.backend = inputs[-1]


def _backward_qk(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (query, key), (to_query, to_key, *_) = ctx.saved_tensors, ctx.needs_input_grad
    return (
        BAND_PV(gradient, key, ctx.backend) if to_query else None,
        BAND_PTV(gradient, query, ctx.backend) if to_key else None,
        None,
        None,
    )


def _backward_pv(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (band, value), (to_band, to_value, *_) = ctx.saved_tensors, ctx.needs_input_grad
    return (
        BAND_QK(gradient, value, _window(band), ctx.backend) if to_band else None,
        BAND_PTV(band, gradient, ctx.backend) if to_value else None,
        None,
    )


def _backward_ptv(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (band, value), (to_band, to_value, *_) = ctx.saved_tensors, ctx.needs_input_grad
    return (
        BAND_QK(value, gradient, _window(band), ctx.backend) if to_band else None,
        BAND_PV(band, gradient, ctx.backend) if to_value else None,
        None,
    )


BAND_QK = register(
    "band_qk(Tensor query, Tensor key, int window, str backend='auto') -> Tensor",
    _run_qk,
    _fake_qk,
    keep=_keep,
    backward=_backward_qk,
)
_SUMS = "(Tensor band, Tensor value, str backend='auto') -> Tensor"
BAND_PV = register(f"band_pv{_SUMS}", _run_pv, _fake_sums, keep=_keep, backward=_backward_pv)
BAND_PTV = register(f"band_ptv{_SUMS}", _run_ptv, _fake_sums, keep=_keep, backward=_backward_ptv)
