"""Attention with scores that no backend computes, on packed rows, one chunk of a batch's layouts at a time."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bandrank.models.layers.block import Block
from bandrank_kernels.windowed_attention import AttentionPlan, Layout, Layouts, PackedRows

# Scores, and products with a table of positions, that are in memory at once: they stay in the cache of a CPU (16 MB),
# and fill a GPU with few launches (256 MB). A query row alone may need more.
CHUNK_ON_CPU, CHUNK_ON_GPU = 1 << 22, 1 << 26


@dataclass(frozen=True)
class Chunk:
    """A part of a layout: some of its attentions, or some rows of one of them. The fields are those of `Layout`."""

    query_index: Tensor
    key_index: Tensor
    bias: Tensor | None

    def gather(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, (n, num_heads, num_rows, head_dim), key and value, (n, num_heads, num_keys, head_dim).

        qkv: (total, 3, num_heads, head_dim).
        """
        query, key, value = (
            qkv[:, part].index_select(0, index.flatten()).view(*index.shape, *qkv.shape[2:]).transpose(1, 2)
            for part, index in enumerate((self.query_index, self.key_index, self.key_index))
        )
        return query, key, value

    def distances(self, positions: Tensor) -> Tensor:
        """(n, num_rows, num_keys) int64 position of each query row minus that of each key row. positions: (total,)."""
        return positions[self.query_index][:, :, None] - positions[self.key_index][:, None, :]

    def average(self, scores: Tensor, value: Tensor) -> Tensor:
        """(n * num_rows, hidden_size) values weighted by the softmax of scores, in the dtype of `value`.

        scores: (n, num_heads, num_rows, num_keys) float32.
        """
        scores = scores if self.bias is None else scores + self.bias
        attended: Tensor = scores.softmax(-1).to(value.dtype) @ value
        return attended.transpose(1, 2).flatten(2).flatten(0, 1)


class DistancePlan(AttentionPlan):
    """The plan of a batch whose scores depend on the distances of rows; only a block, which has positions, attends."""

    def attend(self, qkv: Tensor) -> Tensor:
        raise NotImplementedError("the distances of rows are those of their positions, which a block has")


@dataclass(frozen=True)
class ChunkedPlan(DistancePlan):
    """The plan of a batch in plain torch. reach: the longest distance of two rows of a sequence."""

    layouts: Layouts
    reach: int


Plan = TypeVar("Plan", bound=ChunkedPlan)


class ChunkedBlock(Block, Generic[Plan]):
    """A block with its own attention, which takes only the plans of its encoder's table."""

    @abstractmethod
    def attend_layouts(self, layouts: Sequence[Layout], qkv: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        """(number of rows in the layouts, hidden_size) attended values, by row number.

        qkv: (total, 3, num_heads, head_dim).  positions: (total,).
        """

    def attend(self, qkv: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        own = self._own(plan)
        return self.attend_layouts(own.layouts.rows, qkv, positions, own)

    def forward_cls(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, num_candidates: int) -> Tensor:
        """(num_candidates, hidden_size) output of `forward` for the [CLS] rows, which come first."""
        own = self._own(plan)
        attended = self.attend_layouts(own.layouts.cls, self.project(hidden, positions), positions, own)
        return self._after_attention(attended, hidden[:num_candidates])

    def _own(self, plan: AttentionPlan) -> Plan:
        if not isinstance(plan, ChunkedPlan):
            raise NotImplementedError(f"{type(self).__name__} has no attention by a {type(plan).__name__}")
        return cast("Plan", plan)


def attend_in_chunks(
    layouts: Sequence[Layout], attend: Callable[[Chunk], Tensor], qkv: Tensor, *, table_rows: int = 0
) -> Tensor:
    """(number of rows in the layouts, hidden_size) attended values, by row number.

    attend: gives (n * num_rows, hidden_size) of a chunk.  qkv: (total, 3, num_heads, head_dim).
    table_rows: rows of a table with which `attend` multiplies each row of queries and keys.
    """
    num_heads = qkv.shape[2]
    parts, rows = [qkv.new_empty(0, num_heads * qkv.shape[3])], [torch.empty(0, dtype=torch.int64, device=qkv.device)]
    for layout in layouts:
        attended = [_checkpointed(attend, chunk) for chunk in _chunks(layout, num_heads, num_heads * table_rows)]
        parts.append(torch.cat(attended).index_select(0, layout.out_indices))
        rows.append(layout.out_rows)
    together = torch.cat(parts)
    return torch.empty_like(together).index_copy(0, torch.cat(rows), together)


def reach(rows: PackedRows) -> int:
    """The longest distance of two rows of a sequence."""
    queries = np.diff(rows.cu_queries)
    together = 1 + queries[rows.candidate_query] + np.diff(rows.cu_candidates)
    return int(max(queries.max(initial=1), together.max(initial=1))) - 1


def _chunks(layout: Layout, num_heads: int, table_size: int) -> Iterator[Chunk]:
    """Yields the parts of a layout, in the order of its flattened rows.

    table_size: the products of a row of queries or keys with the table.
    """
    most = CHUNK_ON_CPU if layout.query_index.device.type == "cpu" else CHUNK_ON_GPU
    count, num_rows = layout.query_index.shape
    num_keys = layout.key_index.shape[1]
    of_row = num_heads * num_keys + table_size
    several = max(1, most // (num_rows * of_row + num_keys * table_size))
    step = num_rows if several > 1 else max(1, most // of_row)
    for first in range(0, count, several):
        which = slice(first, first + several)
        for row in range(0, num_rows, step):
            rows = slice(row, row + step)
            bias = layout.bias
            if bias is not None:
                bias = bias[which, :, rows] if bias.shape[2] > 1 else bias[which]
            yield Chunk(layout.query_index[which, rows], layout.key_index[which], bias)


def _checkpointed(function: Callable[[Chunk], Tensor], chunk: Chunk) -> Any:
    """Calls a function. For gradients, the backward pass calls it again, so that no scores are kept until then."""
    if not torch.is_grad_enabled():
        return function(chunk)
    return checkpoint(function, chunk, use_reentrant=False, preserve_rng_state=False)
