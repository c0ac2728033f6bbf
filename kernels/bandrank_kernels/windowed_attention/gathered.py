"""Attention of whole sequences: gathered into groups of like length, padded little, one SDPA call a group."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bandrank_kernels.windowed_attention.spans import Ints, Spans

LENGTH_RATIO = 1.15  # longest over shortest sequence of a group: 7 % padding at most on average
LENGTH_SLACK = 8  # rows: below this, padding costs less than one more call
MAX_GROUP_ROWS = 1 << 14  # keys gathered at once: bounds the copy, and keeps it in the last-level cache of a CPU


@dataclass(frozen=True)
class SequenceGroup:
    """Sequences padded together; every query row of one sees every key row of the same.

    query_index, key_index: (n, width) row numbers.  key_bias: (n, 1, 1, width) 0 or -inf, None when nothing is padded.
    out_rows: the row numbers of the real query rows.  out_places: where they lie in the flattened (n * width).
    """

    query_index: Tensor
    key_index: Tensor
    key_bias: Tensor | None
    out_rows: Tensor
    out_places: Tensor


def plan_groups(queries: Spans, keys: Spans, *, device: torch.device, dtype: torch.dtype) -> list[SequenceGroup]:
    """Groups that cover all sequences with at least one query row. Sequence i attends from queries[i] to keys[i]."""
    return [
        _plan_group(queries.take(which), keys.take(which), device=device, dtype=dtype)
        for which in _like_lengths(keys.totals, np.flatnonzero(queries.totals))
    ]


def _like_lengths(lengths: Ints, chosen: Ints) -> Iterator[Ints]:
    """`chosen` sequences cut into groups of like length."""
    order = chosen[np.argsort(lengths[chosen], kind="stable")]
    start = 0
    for end in range(1, len(order) + 1):
        shortest = lengths[order[start]]
        if end < len(order):
            longest = lengths[order[end]]
            fits = longest <= max(shortest * LENGTH_RATIO, shortest + LENGTH_SLACK)
            if fits and (end - start + 1) * longest <= MAX_GROUP_ROWS:
                continue
        yield order[start:end]
        start = end


def _plan_group(queries: Spans, keys: Spans, *, device: torch.device, dtype: torch.dtype) -> SequenceGroup:
    query_index, query_real = queries.lay_out()
    key_index, key_real = keys.lay_out()
    bias = None
    if not key_real.all():
        bias = torch.zeros(key_real.shape, dtype=dtype).masked_fill_(torch.from_numpy(~key_real), -torch.inf)[
            :, None, None, :
        ]
    places = np.flatnonzero(query_real)
    return SequenceGroup(
        query_index=torch.from_numpy(query_index).to(device),
        key_index=torch.from_numpy(key_index).to(device),
        key_bias=None if bias is None else bias.to(device),
        out_rows=torch.from_numpy(query_index.reshape(-1)[places]).to(device),
        out_places=torch.from_numpy(places).to(device),
    )


def attend_group(group: SequenceGroup, qkv: Tensor, out: Tensor) -> None:
    """Writes the attention of the group's query rows into `out`.

    qkv: (num_rows, 3, num_heads, head_dim).  out: (num_rows, num_heads, head_dim).
    """
    heads = qkv.shape[2:]
    query = qkv[:, 0].index_select(0, group.query_index.view(-1)).view(*group.query_index.shape, *heads)
    key_value = qkv[:, 1:].index_select(0, group.key_index.view(-1)).view(*group.key_index.shape, 2, *heads)
    key, value = key_value.unbind(2)
    attended = scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=group.key_bias
    )
    flat = attended.transpose(1, 2).reshape(-1, *heads)
    if len(group.out_places) < len(flat):
        flat = flat.index_select(0, group.out_places)
    out.index_copy_(0, group.out_rows, flat)


def attend_group_cls(group: SequenceGroup, query: Tensor, rows: Tensor, scale: float, out: Tensor) -> None:
    """Writes the absorbed attention of the group's [CLS] rows into `out`; the heads are the query rows of one
    attention.

    query, out: (num_candidates, num_heads, hidden_size).  rows: (num_rows, hidden_size).
    """
    candidates = group.query_index[:, 0]
    keys = rows.index_select(0, group.key_index.view(-1)).view(*group.key_index.shape, -1)[:, None]
    queries = query.index_select(0, candidates)[:, None]
    attended = scaled_dot_product_attention(queries, keys, keys, attn_mask=group.key_bias, scale=scale)
    out.index_copy_(0, candidates, attended[:, 0])
