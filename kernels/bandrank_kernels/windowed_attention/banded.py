"""Attention of candidate rows over a window: blocks of packed rows with their keys gathered, one SDPA call per chunk.

A block is BLOCK_ROWS consecutive candidate rows, of one candidate or several. Its keys are the rows of the block with
`window` rows on each side, the [CLS] rows of its candidates, and the rows of their queries; a bias says which row
sees which key. Nothing is padded to a candidate's length, and memory is linear in rows: a chunk of blocks holds
MAX_CHUNK_KEYS keys at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.arrays import Bools, Ints
from bandrank_kernels.grouping import padded_runs
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.pieces import Heads, Piece, Sources
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.spans import Spans

BLOCK_ROWS = 32  # rows; a window wider than this takes blocks as wide as itself
MAX_CHUNK_KEYS = 1 << 12


@dataclass(frozen=True)
class BlockChunk(Piece):
    """Blocks that are attended together. Gathers from queries (num_rows, num_heads, head_dim), and keys and values
    (num_rows, 2, num_heads, head_dim).

    first_row: the first of the chunk's consecutive rows.  key_index: (num_blocks, num_keys) row numbers.
    bias: (num_blocks, 1, block_rows, num_keys) 0 or -inf.
    """

    first_row: int
    key_index: Tensor
    bias: Tensor

    @property
    def row_range(self) -> slice:
        """The chunk's rows."""
        return slice(self.first_row, self.first_row + self.bias.shape[0] * self.bias.shape[2])

    def gather(self, sources: Sources) -> tuple[Tensor, Tensor]:
        queries, key_values = sources
        return queries[self.row_range], key_values.index_select(0, self.key_index.view(-1))

    def attend(self, query: Tensor, key_value: Tensor) -> Tensor:
        return self._heads(query, key_value).attend().transpose(1, 2).flatten(0, 1)

    def differentiate(self, query: Tensor, key_value: Tensor, rows_gradient: Tensor) -> tuple[Tensor, Tensor]:
        """A closed form: SDPA's backward of many blocks with few keys takes up to three times as long on a CPU."""
        return self._heads(query, key_value).gradients(self._spread(rows_gradient))

    def _heads(self, query: Tensor, key_value: Tensor) -> Heads:
        num_blocks, _, _, num_keys = self.bias.shape
        keys, values = key_value.view(num_blocks, num_keys, 2, *query.shape[1:]).unbind(2)
        bias, scale = self.bias.to(query.dtype), query.shape[-1] ** -0.5
        return Heads(self._spread(query), keys.transpose(1, 2), values.transpose(1, 2), bias, scale)

    def _spread(self, rows: Tensor) -> Tensor:
        num_blocks, _, height, _ = self.bias.shape
        return rows.reshape(num_blocks, height, *rows.shape[1:]).transpose(1, 2)

    def write(self, rows: Tensor, out: Tensor) -> None:
        out[self.row_range] = rows

    def read(self, out: Tensor) -> Tensor:
        return out[self.row_range]

    def add(self, query: Tensor, key_value: Tensor, sources: Sources) -> None:
        queries, key_values = sources
        queries[self.row_range] += query
        key_values.index_add_(0, self.key_index.view(-1), key_value)


def plan_blocks(
    rows: PackedRows, pattern: AttentionPattern, dtype: torch.dtype, *, first_row: int | None = None
) -> list[BlockChunk]:
    """Chunks of blocks that cover all candidate rows, in host memory. The pattern's window is finite.

    first_row: where candidate rows start, if not after [CLS] and query rows.
    """
    first_row = rows.first_candidate_row if first_row is None else first_row
    total = int(rows.cu_candidates[-1])
    owner = np.repeat(np.arange(rows.num_candidates), rows.candidate_lengths)
    assert pattern.window is not None, "a band without a window. This is a bug."
    window = min(pattern.window, int(rows.candidate_lengths.max(initial=0)))  # no two rows are farther apart
    pattern = replace(pattern, window=window)
    block_rows = max(BLOCK_ROWS, window)
    whole = total // block_rows
    block_sets = [
        (np.arange(whole) * block_rows, block_rows),
        (np.arange(whole * block_rows, total)[:1], total % block_rows),
    ]

    def chunk(firsts: Ints, height: int) -> BlockChunk:
        inside = firsts[:, None] + np.arange(height)  # candidate rows, counted from the first
        near = firsts[:, None] + np.arange(-window, height + window)
        exists = (near >= 0) & (near < total)
        near = near.clip(0, total - 1)
        seen = exists[:, None, :] & (owner[near][:, None, :] == owner[inside][:, :, None])
        seen &= np.abs(np.arange(height)[:, None] + window - np.arange(height + 2 * window)[None, :]) <= window
        keys, masks = [near + first_row], [seen]
        for index, visible in _globals(rows, pattern, owner, inside):
            keys.append(index)
            masks.append(visible)
        hidden = torch.from_numpy(~np.concatenate(masks, 2))
        bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
        return BlockChunk(
            first_row=first_row + int(firsts[0]),
            key_index=torch.from_numpy(np.concatenate(keys, 1)),
            bias=bias[:, None],
        )

    return [
        chunk(firsts[run], height)
        for firsts, height in block_sets
        if len(firsts)
        for run in padded_runs(_num_keys(rows, pattern, owner, firsts, height).tolist(), MAX_CHUNK_KEYS)
    ]


def _global_spans(rows: PackedRows, owner: Ints, first: Ints, last: Ints) -> tuple[Spans, Spans]:
    """The [CLS] rows of all candidates that rows first..last belong to, and the rows of all their queries."""
    candidate, last_candidate = owner[first], owner[last]
    query, last_query = rows.candidate_query[candidate], rows.candidate_query[last_candidate]
    cls = Spans(candidate[:, None], (last_candidate - candidate + 1)[:, None])
    begin, end = rows.cu_queries[query], rows.cu_queries[last_query + 1]
    return cls, Spans((rows.first_query_row + begin)[:, None], (end - begin)[:, None])


def _globals(rows: PackedRows, pattern: AttentionPattern, owner: Ints, inside: Ints) -> Iterator[tuple[Ints, Bools]]:
    """Row numbers (blocks, keys) and visibility (blocks, rows, keys) of the [CLS] and query rows that blocks see."""
    cls, query = _global_spans(rows, owner, inside[:, 0], inside[:, -1])
    if pattern.candidate_to_cls:
        index, real = cls.lay_out()
        yield index, real[:, None, :] & (index[:, None, :] == owner[inside][:, :, None])
    if pattern.candidate_to_query:
        index, real = query.lay_out()
        query_of_row = np.repeat(np.arange(rows.num_queries), rows.query_lengths)
        query_of_key = (
            query_of_row[(index - rows.first_query_row).clip(0, max(0, len(query_of_row) - 1))] if index.size else index
        )
        yield index, real[:, None, :] & (query_of_key[:, None, :] == rows.candidate_query[owner[inside]][:, :, None])


def _num_keys(rows: PackedRows, pattern: AttentionPattern, owner: Ints, firsts: Ints, height: int) -> Ints:
    """(blocks,) number of keys of each block."""
    assert pattern.window is not None, "a band without a window. This is a bug."
    cls, query = _global_spans(rows, owner, firsts, firsts + height - 1)
    return (
        height + 2 * pattern.window + cls.totals * pattern.candidate_to_cls + query.totals * pattern.candidate_to_query
    )
