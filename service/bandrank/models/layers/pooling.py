"""Pooling: one vector for each sequence of rows."""

from typing import Literal

import torch
from torch import Tensor

from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import Ints, indices_within
from bandrank_kernels.transfer import to_device

Pooling = Literal["mean", "cls", "max", "last", "mean_sqrt_len", "weighted_mean"]


def pool(states: Ragged, how: Pooling) -> Tensor:
    """(n, hidden_size) float32: a sequence's first row ("cls") or last one, its maximum in each dimension, its mean,
    its sum over the square root of its length, or its mean in which the i-th row, from 1, counts i times.

    An empty sequence gives zeros.
    """
    rows = states.values.float()
    tables = [torch.from_numpy(table) for table in (states.lengths, _numbers(states, how))]
    lengths, numbers = to_device(tables, rows.device)
    if how in ("mean", "mean_sqrt_len", "weighted_mean"):
        owner = torch.repeat_interleave(lengths, output_size=len(rows))
        total = lengths.clamp(min=1).float()
        if how == "weighted_mean":
            rows, total = rows * numbers[:, None], total * (total + 1) / 2
        elif how == "mean_sqrt_len":
            total = total.sqrt()
        sums = rows.new_zeros(len(states), rows.shape[1]).index_add_(0, owner, rows)
        return sums / total[:, None]
    if how == "max":
        best = torch.segment_reduce(rows, "max", lengths=lengths, initial=-torch.inf, unsafe=True)
        return best.masked_fill((lengths == 0)[:, None], 0.0)
    padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    return padded[numbers] * (lengths > 0)[:, None]


def pooled_row(tokens: Ragged, how: Pooling) -> Ints | None:
    """(n,) the only row of each sequence that `pool` reads; None if it reads more, or if a sequence is empty."""
    if how not in ("cls", "last") or not tokens.lengths.all():
        return None
    return _numbers(tokens, how)


def _numbers(states: Ragged, how: Pooling) -> Ints:
    """For "weighted_mean" the number of each row in its sequence, from 1; else the chosen row of each sequence."""
    if how == "weighted_mean":
        return indices_within(states.lengths) + 1
    # An empty sequence at an end starts one past it.
    return states.cu_seqlens[:-1] if how == "cls" else states.cu_seqlens[1:] - 1
