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
    rows = states.values
    tables = [torch.from_numpy(table) for table in (states.lengths, indices_within(states.lengths))]
    lengths, positions = to_device(tables, rows.device)
    owner = torch.repeat_interleave(lengths, output_size=len(rows))
    return pool_by_owner(rows, owner, positions, lengths, how)


def pool_by_owner(states: Tensor, owner: Tensor, positions: Tensor, lengths: Tensor, how: Pooling) -> Tensor:
    """(n, hidden_size) `pool` for each of n texts; only launches kernels.

    states: (total, hidden_size).  owner, positions: (total,) int64, the text of each row, and its place there, from 0.
    lengths: (n,) int64, rows of each text.
    """
    rows = states.float()
    sums = rows.new_zeros(len(lengths), rows.shape[1])
    if how in ("mean", "mean_sqrt_len", "weighted_mean"):
        total = lengths.clamp(min=1).float()
        if how == "weighted_mean":
            rows, total = rows * (positions[:, None] + 1), total * (total + 1) / 2
        elif how == "mean_sqrt_len":
            total = total.sqrt()
        return sums.index_add_(0, owner, rows) / total[:, None]
    if how == "max":
        best = sums.fill_(-torch.inf).scatter_reduce(0, owner[:, None].expand_as(rows), rows, "amax")
        return best.masked_fill((lengths == 0)[:, None], 0.0)
    chosen = positions == (0 if how == "cls" else lengths[owner] - 1)
    vectors = rows.new_zeros(len(lengths) + 1, rows.shape[1])
    vectors[torch.where(chosen, owner, len(lengths))] = rows  # those that are not chosen at one place, unread
    return vectors[:-1]


def pooled_row(tokens: Ragged, how: Pooling) -> Ints | None:
    """(n,) the only row of each sequence that `pool` reads; None if it reads more, or if a sequence is empty."""
    if how not in ("cls", "last") or not tokens.lengths.all():
        return None
    # An empty sequence at an end would start one past it.
    return tokens.cu_seqlens[:-1] if how == "cls" else tokens.cu_seqlens[1:] - 1
