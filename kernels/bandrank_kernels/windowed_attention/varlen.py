"""Whole sequences on a GPU by torch's FlashAttention, one call a layer (Dao 2023, arXiv 2307.08691)."""

import copy
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.arrays import Offsets, lengths_of, offsets, ranges
from bandrank_kernels.cuda import is_half
from bandrank_kernels.launch import device_capability, gpu_obstacle, in_pieces
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention.capacity import Capacity, power_of_two
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.spans import candidate_spans, cls_spans, query_spans
from bandrank_kernels.windowed_attention.vectorized import attend_cls_groups, plan_cls_groups

SHORTEST = 256  # of a bucket's longest sequence: two blocks of query rows

Attend = Callable[[Sequence[Tensor], Sequence[Tensor], tuple[int, int], int | None], Tensor]


def flash(qkv: Sequence[Tensor], cu_seqlens: Sequence[Tensor], longest: tuple[int, int], window: int | None) -> Tensor:
    """(num_queries, num_heads, head_dim) attention of the sequences of queries over those of keys.

    qkv: (n, heads, head_dim) each; several heads may share keys.  cu_seqlens: int32 offsets of queries, and of keys.
    longest: rows of the longest sequence of both.  window: the most positions to a key, or None. Query rows beyond the
    last sequence get arbitrary values, rows of a sequence without keys zeros.
    """
    if not is_half(qkv[0].dtype):  # autocast leaves queries and keys in float32 that are turned by their positions
        qkv = [each.to(torch.get_autocast_dtype(each.device.type)) for each in qkv]
    rows = (in_pieces(each) for each in qkv)
    # The operator behind `torch.nn.attention.varlen.varlen_attn`, which would also fill a tensor in each call.
    out, *_ = torch.ops.aten._flash_attention_forward(
        *rows,
        *cu_seqlens,
        *longest,
        dropout_p=0.0,
        is_causal=False,
        return_debug_mask=False,
        window_size_left=window,
        window_size_right=window,
    )
    return out  # type: ignore[no-any-return]  # operators carry no types


def why_no_varlen(*, device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why torch's FlashAttention cannot run, as a clause for a message; None if it can."""
    if reason := gpu_obstacle(device):
        return reason
    if not torch.backends.cuda.is_flash_attention_available():
        return "this torch was built without FlashAttention"
    if device_capability(device) < (8, 0):
        return "FlashAttention needs compute capability 8.0 or higher"
    if not is_half(dtype):
        return f"FlashAttention needs float16 or bfloat16, got {dtype}"
    if head_dim % 8 or head_dim > 256:
        return f"FlashAttention needs heads of a multiple of 8 numbers up to 256, got {head_dim}"
    return None


class TextsPlan(AttentionPlan):
    """Texts that lie end to end; unused rows may follow. Each row attends to the rows of its text, or to those of them
    at most `window` positions away.
    """

    def __init__(
        self,
        cu_seqlens: Offsets,
        *,
        device: torch.device,
        window: int | None = None,
        num_texts: int | None = None,
        longest: int | None = None,
        attend: Attend = flash,
    ) -> None:
        """num_texts, longest: that launches are made for, if not those of the batch."""
        self._device, self._window, self._attend = device, window, attend
        self.attends_each = window is None  # the window of a single query row would end at its text's last row
        self._longest = int(lengths_of(cu_seqlens).max(initial=0)) if longest is None else longest
        table = np.full((num_texts or len(cu_seqlens) - 1) + 1, cu_seqlens[-1], np.int32)
        table[: len(cu_seqlens)] = cu_seqlens  # the other texts are empty
        self.host_tables: Sequence[Tensor] = [torch.from_numpy(table)]

    @property
    def signature(self) -> Hashable:
        return self._longest, self._window

    def bind(self, tables: Sequence[Tensor]) -> Self:
        bound = copy.copy(self)
        (bound._cu_seqlens,) = tables
        return bound

    def attend(self, qkv: Tensor) -> Tensor:
        return self.attend_grouped(*qkv.unbind(1))

    def attend_grouped(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # Where none has two rows, the operator would put heads that share keys side by side, and fail at empty texts.
        return self._attended((query, key, value), self._cu_seqlens, max(self._longest, 2))

    def attend_each(self, qkv: Tensor, rows: Tensor) -> Tensor:
        query, key, value = qkv.unbind(1)
        each = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device)
        return self._attended((query.index_select(0, rows), key, value), each, 1)

    @cached_property
    def _cu_seqlens(self) -> Tensor:
        return to_device(self.host_tables, self._device)[0]

    def _attended(self, qkv: Sequence[Tensor], cu_queries: Tensor, longest: int) -> Tensor:
        if not len(qkv[0]) or not self._longest:  # nothing to launch
            return torch.empty_like(qkv[0], memory_format=torch.contiguous_format)
        return self._attend(qkv, (cu_queries, self._cu_seqlens), (longest, self._longest), self._window)


class JoinedPlan(AttentionPlan):
    """Full attention: the [CLS], the query and the rows of each candidate are joined to a text.

    Rows that are arranged before the first layer, those of each text end to end, need not be moved in each: `texts` is
    their plan.
    """

    def __init__(
        self, rows: PackedRows, *, device: torch.device, capacity: Capacity | None = None, attend: Attend = flash
    ) -> None:
        """capacity: the size of the launches, the same for all batches that fit."""
        self._rows, self._device = rows, device
        spans = cls_spans(rows).join(query_spans(rows).take(rows.candidate_query)).join(candidate_spans(rows))
        cu_seqlens, room = offsets(spans.totals), capacity or Capacity.exactly(rows)
        longest = power_of_two(int(spans.totals.max(initial=0)), SHORTEST) if capacity else None
        order, cls = np.arange(room.num_rows), np.zeros(room.num_candidates, np.int64)
        order[: rows.num_rows] = ranges(spans.starts.ravel(), spans.lengths.ravel())
        cls[: rows.num_candidates] = cu_seqlens[:-1]
        self._texts = TextsPlan(cu_seqlens, device=device, num_texts=len(cls), longest=longest, attend=attend)
        self.host_tables: Sequence[Tensor] = [*map(torch.from_numpy, (order, cls)), *self._texts.host_tables]

    @property
    def signature(self) -> Hashable:
        return self._texts.signature

    def bind(self, tables: Sequence[Tensor]) -> Self:
        bound = copy.copy(self)
        bound._tables = tables
        return bound

    @property
    def texts(self) -> AttentionPlan:
        """The plan of arranged rows."""
        return self._texts.bind(self._tables[2:])

    @property
    def cls(self) -> Tensor:
        """(num_candidates,) the arranged [CLS] rows; those of unused candidates are any row."""
        return self._tables[1]

    def arrange(self, rows: Tensor) -> Tensor:
        """(num_rows, ...) the same rows, those of each text end to end."""
        return rows.index_select(0, self._tables[0])

    def restore(self, arranged: Tensor) -> Tensor:
        """Undoes `arrange`."""
        return torch.empty_like(arranged).index_copy_(0, self._tables[0], arranged)

    def attend(self, qkv: Tensor) -> Tensor:
        return self.restore(self.texts.attend(self.arrange(qkv)))

    def attend_first(self, qkv: Tensor, num_candidates: int) -> Tensor:
        return self.texts.attend_each(self.arrange(qkv), self.cls)[:num_candidates]

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        groups = plan_cls_groups(self._rows, AttentionPattern(), device=self._device, dtype=query.dtype)
        return attend_cls_groups(groups, query, rows, scale)

    @cached_property
    def _tables(self) -> Sequence[Tensor]:
        return to_device(self.host_tables, self._device)
