"""The pooler of BERT and a classifier with one output (Devlin et al. 2019, section 3), from pooled rows to scores."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from bandrank_kernels.dispatch import Backend, choose_backend
from bandrank_kernels.pooled_scores import cuda
from bandrank_kernels.pooled_scores.cuda import HeadActivation

ACTIVATIONS: Mapping[HeadActivation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,  # the exact erf form
    "relu": functional.relu,
}


def pooled_scores(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    vector: Tensor,
    constant: Tensor,
    *,
    activation: HeadActivation = "tanh",
    backend: Backend = "auto",
) -> Tensor:
    """(n,) float32 scores: vector . activation(weight row + bias) + constant, with all sums in float32.

    rows: (n, inputs) of a floating-point dtype.  weight: (outputs, inputs), contiguous, of the same dtype.  bias,
    vector: (outputs,), and constant: (1,), contiguous float32. The kernel has no gradient; it takes float16 and
    bfloat16 (`cuda.why_unsupported`), and gives a row the same bits in any batch. Raises ValueError if they do
    not fit together, BackendUnavailable.
    """
    _check(rows, weight, bias, vector, constant)
    differentiated = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (rows, weight, bias, vector, constant)
    )
    unsupported = "the kernel has no gradient" if differentiated else None
    unsupported = unsupported or cuda.why_unsupported(rows.dtype, rows.shape[1], len(weight), rows.device)
    if choose_backend(backend, rows.device, unsupported=unsupported) == "cuda":
        return cuda.pooled_scores(rows, weight, bias, vector, constant, activation=activation)
    pooled = ACTIVATIONS[activation](functional.linear(rows.float(), weight.float(), bias))
    return pooled @ vector + constant


def _check(rows: Tensor, weight: Tensor, bias: Tensor, vector: Tensor, constant: Tensor) -> None:
    """Raises ValueError if shapes, dtypes or devices do not fit together."""
    if rows.dim() != 2 or not rows.is_floating_point():
        raise ValueError(f"rows must be (n, inputs) of a floating-point dtype, got {tuple(rows.shape)} {rows.dtype}")
    outputs = len(weight)
    for name, tensor, shape, dtype in (
        ("weight", weight, (outputs, rows.shape[1]), rows.dtype),
        ("bias", bias, (outputs,), torch.float32),
        ("vector", vector, (outputs,), torch.float32),
        ("constant", constant, (1,), torch.float32),
    ):
        fits = tensor.shape == shape and tensor.dtype == dtype and tensor.device == rows.device
        if not fits or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be {shape} {dtype} on {rows.device}, contiguous, got {tuple(tensor.shape)} "
                f"{tensor.dtype} on {tensor.device}"
            )
