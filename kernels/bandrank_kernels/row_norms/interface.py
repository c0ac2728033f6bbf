"""The two operations of BERT in which a LayerNorm follows a sum of rows (Devlin et al. 2019; Ba et al. 2016, Layer
Normalization, arXiv 1607.06450).

Both are differentiable. The bias of the preceding linear layer is not an argument: the matrix product adds it in its
epilogue, to numbers that it holds in registers anyway.
"""

from torch import Tensor

from bandrank_kernels.dispatch import Backend
from bandrank_kernels.row_norms import ops
from bandrank_kernels.row_norms.addends import Addend


def add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, *, eps: float, backend: Backend = "auto"
) -> Tensor:
    """LayerNorm of x + residual.

    x, residual: (total, hidden_size).  weight, bias: (hidden_size,), all of one floating-point dtype and device.
    Returns (total, hidden_size), contiguous. Raises ValueError if they do not fit together, BackendUnavailable.
    """
    return ops.ADD_NORM(x, residual, weight, bias, eps, backend)


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
    weight, bias: (hidden_size,).  Returns (total, hidden_size), contiguous. Raises what `add_norm` raises. A number
    outside its table raises IndexError on a CPU; the CUDA kernel, which cannot raise, makes that row NaN.
    """
    rows, numbers = zip(word, token_type, position, strict=True)
    return ops.EMBED_ROWS(*rows, *numbers, weight, bias, eps, backend)
