"""The two operations of BERT in which a LayerNorm follows a sum of rows (Devlin et al. 2019; Ba et al. 2016, Layer
Normalization, arXiv 1607.06450).

Both are differentiable, in plain torch. The bias of the preceding linear layer is not an argument: the matrix product
adds it in its epilogue, to numbers that it holds in registers anyway.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from bandrank_kernels.dispatch import Backend, choose_backend
from bandrank_kernels.row_norms import cuda, native, reference
from bandrank_kernels.row_norms.addend import Addend

NormOfSum = Callable[[Sequence[Addend], Tensor, Tensor, float], Tensor]


def add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, *, eps: float, backend: Backend = "auto"
) -> Tensor:
    """LayerNorm of x + residual.

    x, residual: (total, hidden_size).  weight, bias: (hidden_size,), all of one floating-point dtype and device.
    Returns (total, hidden_size), contiguous. Raises ValueError if they do not fit together, BackendUnavailable.
    """
    return _norm_of_sum([Addend(x), Addend(residual)], weight, bias, eps, backend)


def embed_rows(
    word: Addend,
    token_type: Addend,
    position: Addend,
    weight: Tensor,
    bias: Tensor,
    *,
    eps: float,
    backend: Backend = "auto",
) -> Tensor:
    """LayerNorm of a word, a token type and a position vector for each row.

    word: the table and the ids, or the word vectors themselves.  token_type, position: a table, and which of its rows.
    weight, bias: (hidden_size,).  Returns (total, hidden_size), contiguous. Raises the errors of `add_norm`. A number
    outside its table raises IndexError on a CPU; the CUDA kernel, which cannot raise, makes that row NaN.
    """
    return _norm_of_sum([word, token_type, position], weight, bias, eps, backend)


def _norm_of_sum(addends: Sequence[Addend], weight: Tensor, bias: Tensor, eps: float, backend: Backend) -> Tensor:
    _check(addends, weight, bias)
    differentiated = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (weight, bias, *(addend.rows for addend in addends))
    )
    run = _backend(backend, weight.device, weight.dtype, len(weight), differentiated=differentiated)
    return run(addends, weight, bias, eps)


@functools.cache  # called twice in every layer with the same arguments
def _backend(
    backend: Backend, device: torch.device, dtype: torch.dtype, hidden_size: int, *, differentiated: bool
) -> NormOfSum:
    unsupported = "the kernel has no gradient" if differentiated else cuda.why_unsupported(dtype, hidden_size)
    match choose_backend(backend, device, unsupported=unsupported):
        case "cuda":
            return cuda.norm_of_sum
        case "reference":
            return reference.norm_of_sum
        case "native" if not differentiated and native.why_unsupported(device, dtype, hidden_size) is None:
            return native.norm_of_sum
    return vectorized


def vectorized(addends: Sequence[Addend], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(total, hidden_size), in plain torch: gathers, sums and LayerNorm, each a pass over the rows.

    Adds in the order of the addends, and rounds after each.
    """
    total, *others = (rows if numbers is None else embedding(numbers, rows) for rows, numbers in addends)
    for rows in others:
        total = total + rows
    return layer_norm(total, weight.shape, weight, bias, eps)


def _check(addends: Sequence[Addend], weight: Tensor, bias: Tensor) -> None:
    """Raises ValueError if the addends, or the weight and bias of their norm, do not fit together."""
    first, total = addends[0].rows, addends[0].total
    if first.dim() != 2 or not first.is_floating_point():
        raise ValueError(f"rows must be (n, hidden_size) of a floating-point dtype, got {_words(first)}")
    hidden_size, dtype, device = first.shape[1], first.dtype, first.device
    for addend in addends:
        rows, numbers = addend
        if rows.dim() != 2 or rows.shape[1] != hidden_size:
            raise ValueError(f"rows must have one hidden_size, got {tuple(first.shape)} and {tuple(rows.shape)}")
        if addend.total != total:
            raise ValueError(f"addends must have one number of rows, got {total} and {addend.total}")
        if numbers is not None and (numbers.dim() != 1 or numbers.dtype != torch.int64 or numbers.device != device):
            raise ValueError(f"numbers of rows must be (total,) int64 on {device}, got {_words(numbers)}")
    for parameter in (weight, bias):
        if parameter.dim() != 1 or parameter.shape[0] != hidden_size:
            raise ValueError(f"weight and bias must be ({hidden_size},), got {tuple(parameter.shape)}")
    for tensor in (*(rows for rows, _ in addends), weight, bias):
        if tensor.dtype != dtype or tensor.device != device:
            raise ValueError(f"all must be {dtype} on {device}, got {_words(tensor)}")


def _words(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
