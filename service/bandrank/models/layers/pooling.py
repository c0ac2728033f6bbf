"""Pooling: one vector for each sequence of rows."""

from typing import Literal

import torch
from torch import Tensor

from bandrank.models.ragged import Ragged

Pooling = Literal["mean", "cls", "max", "last"]


def pool(states: Ragged, how: Pooling) -> Tensor:
    """(n, hidden_size) float32: the mean of each sequence's rows, its first or last row, or its maximum in each
    dimension.

    An empty sequence gives zeros.
    """
    rows = states.values.float()
    lengths = torch.from_numpy(states.lengths).to(rows.device)
    if how == "mean":
        owner = torch.repeat_interleave(lengths, output_size=len(rows))
        sums = rows.new_zeros(len(states), rows.shape[1]).index_add_(0, owner, rows)
        return sums / lengths.clamp(min=1)[:, None]
    if how == "max":
        best = torch.segment_reduce(rows, "max", lengths=lengths, initial=-torch.inf, unsafe=True)
        return best.masked_fill((lengths == 0)[:, None], 0.0)
    # An empty sequence at an end starts one past it.
    indices = states.cu_seqlens[:-1] if how == "cls" else states.cu_seqlens[1:] - 1
    chosen = torch.from_numpy(indices).to(rows.device)
    padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    return padded[chosen] * (lengths > 0)[:, None]
