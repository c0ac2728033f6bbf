"""The two places of BERT where a LayerNorm follows a sum of rows (Devlin et al. 2019; Ba et al. 2016, Layer
Normalization, arXiv 1607.06450).

Both are differentiable. A bias of the linear layer before is no argument: the matrix product adds it in its epilogue,
on numbers that it holds in registers anyway.
"""

from torch import Tensor

from bandrank_kernels.dispatch import Backend
from bandrank_kernels.row_norms import ops


def add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, *, backend: Backend = "auto"
) -> Tensor:
    """LayerNorm of x + residual.

    x, residual: (total, hidden_size).  weight, bias: (hidden_size,), all of one floating-point dtype and device.
    Returns (total, hidden_size), contiguous. Raises ValueError if they do not fit together, BackendUnavailable.
    """
    out: Tensor = ops.ADD_NORM(x, residual, weight, bias, eps, backend)
    return out


def embed_rows(
    word: Tensor,
    token_type: Tensor,
    position: Tensor,
    ids: Tensor | None,
    token_types: Tensor,
    positions: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    backend: Backend = "auto",
) -> Tensor:
    """LayerNorm of word[ids] + token_type[token_types] + position[positions].

    word, token_type, position: (n, hidden_size), each with its own n.  ids, token_types, positions: (total,) int64; ids
    None: `word` is not a table but the word vectors themselves, (total, hidden_size).  weight, bias: (hidden_size,).
    Returns (total, hidden_size), contiguous. Raises what `add_norm` raises. A number outside its table raises
    IndexError on a CPU; the CUDA kernel, which cannot raise, makes that row NaN.
    """
    out: Tensor = ops.EMBED_ROWS(
        word, token_type, position, ids, token_types, positions, weight, bias, eps, backend
    )
    return out
