"""The obvious backend: the formula of LayerNorm, in the dtype of the inputs, float64 too."""

from collections.abc import Sequence

from torch import Tensor

from bandrank_kernels.row_norms.addend import Addend


def norm_of_sum(addends: Sequence[Addend], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(total, hidden_size) LayerNorm of the sum."""
    rows = weight.new_zeros((addends[0].total, len(weight)))
    for addend in addends:
        rows = rows + (addend.rows if addend.numbers is None else addend.rows[addend.numbers])
    centred = rows - rows.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + eps).sqrt() * weight + bias
