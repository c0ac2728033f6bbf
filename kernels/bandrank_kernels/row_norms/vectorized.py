"""The backend in plain torch, for CPU and GPU: gathers, sums and LayerNorm, each a pass over the rows."""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from bandrank_kernels.row_norms.addends import Addend


def norm_of_sum(addends: Sequence[Addend], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(total, hidden_size)."""
    return layer_norm(sum_of(addends), weight.shape, weight, bias, eps)


def sum_of(addends: Sequence[Addend]) -> Tensor:
    """(total, hidden_size), in the order of the addends and rounded after each."""
    return reduce(torch.add, (rows if numbers is None else embedding(numbers, rows) for rows, numbers in addends))
