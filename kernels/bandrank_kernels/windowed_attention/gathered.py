"""Attention of whole sequences, gathered into groups of similar length with little padding, one SDPA call per group."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.grouping import like_lengths
from bandrank_kernels.windowed_attention.pieces import Heads, Piece, Sources
from bandrank_kernels.windowed_attention.spans import Spans

MAX_GROUP_ROWS = 1 << 14  # keys gathered at once: bounds the copy, and keeps it in the last-level cache of a CPU


@dataclass(frozen=True)
class SequenceGroup(Piece):
    """Sequences padded together; every query row of a sequence sees all its key rows. Gathers from queries
    (num_rows, num_heads, head_dim), and keys and values (num_rows, 2, num_heads, head_dim).

    query_index, key_index: (n, width) row numbers.  key_bias: (n, 1, 1, width) 0 or -inf, None when nothing is padded.
    out_rows: the row numbers of the real query rows.  out_indices: their indices in the flattened (n * width).
    """

    query_index: Tensor
    key_index: Tensor
    key_bias: Tensor | None
    out_rows: Tensor
    out_indices: Tensor

    def bias_for(self, query: Tensor) -> Tensor | None:
        """The key bias in the dtype of the queries, which autocast may have changed."""
        return None if self.key_bias is None else self.key_bias.to(query.dtype)

    def gather(self, sources: Sources) -> tuple[Tensor, Tensor]:
        queries, key_values = sources
        query = queries.index_select(0, self.query_index.view(-1))
        return query, key_values.index_select(0, self.key_index.view(-1))

    def attend(self, query: Tensor, key_value: Tensor) -> Tensor:
        rows = self._heads(query, key_value).attend().transpose(1, 2).flatten(0, 1)
        return rows if len(self.out_indices) == len(rows) else rows.index_select(0, self.out_indices)

    def differentiate(self, query: Tensor, key_value: Tensor, rows_gradient: Tensor) -> tuple[Tensor, Tensor]:
        heads = self._heads(query, key_value)
        if not heads.in_closed_form:
            return super().differentiate(query, key_value, rows_gradient)
        if len(self.out_indices) < len(query):
            rows_gradient = torch.zeros_like(query).index_copy_(0, self.out_indices, rows_gradient)
        return heads.gradients(self._spread(rows_gradient))

    def _heads(self, query: Tensor, key_value: Tensor) -> Heads:
        keys, values = key_value.view(*self.key_index.shape, 2, *query.shape[1:]).transpose(1, 3).unbind(2)
        return Heads(self._spread(query), keys, values, self.bias_for(query), query.shape[-1] ** -0.5)

    def _spread(self, rows: Tensor) -> Tensor:
        return rows.view(*self.query_index.shape, *rows.shape[1:]).transpose(1, 2)

    def write(self, rows: Tensor, out: Tensor) -> None:
        out.index_copy_(0, self.out_rows, rows)

    def read(self, out: Tensor) -> Tensor:
        return out.index_select(0, self.out_rows)

    def add(self, query: Tensor, key_value: Tensor, sources: Sources) -> None:
        queries, key_values = sources
        queries.index_add_(0, self.query_index.view(-1), query)
        key_values.index_add_(0, self.key_index.view(-1), key_value)


@dataclass(frozen=True)
class ClsGroup(Piece):
    """A `SequenceGroup` in the absorbed last layer: the heads of a [CLS] row are the query rows of one attention.

    Gathers from queries (num_candidates, num_heads, hidden_size) and rows (num_rows, hidden_size).
    """

    group: SequenceGroup
    scale: float

    @property
    def candidates(self) -> Tensor:
        """(n,) row numbers of the [CLS] rows."""
        return self.group.query_index[:, 0]

    def gather(self, sources: Sources) -> tuple[Tensor, Tensor]:
        queries, rows = sources
        return queries.index_select(0, self.candidates), rows.index_select(0, self.group.key_index.view(-1))

    def attend(self, query: Tensor, key_value: Tensor) -> Tensor:
        return self._heads(query, key_value).attend()[:, 0]

    def differentiate(self, query: Tensor, key_value: Tensor, rows_gradient: Tensor) -> tuple[Tensor, Tensor]:
        heads = self._heads(query, key_value)
        if not heads.in_closed_form:
            return super().differentiate(query, key_value, rows_gradient)
        by_query, by_row = heads.gradients(rows_gradient[:, None])
        return by_query.view_as(query), by_row.sum(1).view_as(key_value)  # a row is both key and value

    def _heads(self, query: Tensor, key_value: Tensor) -> Heads:
        keys = key_value.view(*self.group.key_index.shape, -1)[:, None]
        return Heads(query[:, None], keys, keys, self.group.bias_for(query), self.scale)

    def write(self, rows: Tensor, out: Tensor) -> None:
        out.index_copy_(0, self.candidates, rows)

    def read(self, out: Tensor) -> Tensor:
        return out.index_select(0, self.candidates)

    def add(self, query: Tensor, key_value: Tensor, sources: Sources) -> None:
        queries, rows = sources
        queries.index_add_(0, self.candidates, query)
        rows.index_add_(0, self.group.key_index.view(-1), key_value)


def plan_groups(queries: Spans, keys: Spans, dtype: torch.dtype) -> list[SequenceGroup]:
    """Groups that cover all sequences with at least one query row, in host memory: sequence i attends from queries[i]
    to keys[i].
    """
    attending = np.flatnonzero(queries.totals)
    queries, keys = queries.take(attending), keys.take(attending)
    return [
        _plan_group(queries.take(which), keys.take(which), dtype) for which in like_lengths(keys.totals, MAX_GROUP_ROWS)
    ]


def _plan_group(queries: Spans, keys: Spans, dtype: torch.dtype) -> SequenceGroup:
    query_index, query_real = queries.lay_out()
    key_index, key_real = keys.lay_out()
    bias = None
    if not key_real.all():
        bias = torch.zeros(key_real.shape, dtype=dtype).masked_fill_(torch.from_numpy(~key_real), -torch.inf)[
            :, None, None, :
        ]
    indices = np.flatnonzero(query_real)
    return SequenceGroup(
        query_index=torch.from_numpy(query_index),
        key_index=torch.from_numpy(key_index),
        key_bias=bias,
        out_rows=torch.from_numpy(query_index.reshape(-1)[indices]),
        out_indices=torch.from_numpy(indices),
    )
