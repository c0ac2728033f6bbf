"""The backend in plain torch, for CPU and GPU: few large calls, memory linear in rows."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from bandrank_kernels.windowed_attention.banded import BlockChunk, plan_blocks
from bandrank_kernels.windowed_attention.gathered import ClsGroup, SequenceGroup, plan_groups
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.pieces import attend_pieces, on_device, split
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.spans import candidate_spans, cls_spans, query_spans


class VectorizedPlan(AttentionPlan):
    """Whole sequences go through gathered groups, windowed candidate rows through blocks of the band.

    pieces: exactly one of them writes each row.  cls_groups: they cover the [CLS] rows.
    """

    def __init__(
        self, rows: PackedRows, pattern: AttentionPattern, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        cls, candidate = cls_spans(rows), candidate_spans(rows)
        query = query_spans(rows).take(rows.candidate_query)  # one entry per candidate
        candidate_keys = candidate.join(cls, visible=pattern.candidate_to_cls)
        candidate_keys = candidate_keys.join(query, visible=pattern.candidate_to_query)
        if pattern.shares_queries:
            query_keys = query_rows = query_spans(rows)
        else:
            query_rows, query_keys = query, query.join(cls, visible=pattern.query_to_cls)
            query_keys = query_keys.join(candidate, visible=pattern.query_to_candidate)
        cls_groups = _cls_groups(rows, pattern, dtype)
        others: list[SequenceGroup | BlockChunk] = []
        if pattern.is_full:
            sequence = cls.join(query).join(candidate)
            others += plan_groups(sequence, sequence, dtype)
        else:
            others += plan_groups(query_rows, query_keys, dtype)
            if pattern.window is None:
                others += plan_groups(candidate, candidate_keys, dtype)
            else:
                others += plan_blocks(rows, pattern, dtype)
        together = on_device([*cls_groups, *others], device)
        self.cls_groups = cast("list[SequenceGroup]", together[: len(cls_groups)])
        self.pieces = together[len(cls_groups) :] if pattern.is_full else together

    def attend(self, qkv: Tensor) -> Tensor:
        return attend_pieces(self.pieces, qkv.new_empty(qkv.shape[0], *qkv.shape[2:]), *split(qkv))

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        return attend_cls_groups(self.cls_groups, query, rows, scale)


def plan_cls_groups(
    rows: PackedRows, pattern: AttentionPattern, *, device: torch.device, dtype: torch.dtype
) -> list[SequenceGroup]:
    """Groups that cover the [CLS] rows of all candidates."""
    return on_device(_cls_groups(rows, pattern, dtype), device)


def _cls_groups(rows: PackedRows, pattern: AttentionPattern, dtype: torch.dtype) -> list[SequenceGroup]:
    cls = cls_spans(rows)
    keys = cls.join(query_spans(rows).take(rows.candidate_query), visible=pattern.cls_to_query)
    return plan_groups(cls, keys.join(candidate_spans(rows), visible=pattern.cls_to_candidate), dtype)


def attend_cls_groups(groups: Sequence[SequenceGroup], query: Tensor, rows: Tensor, scale: float) -> Tensor:
    """Computes `AttentionPlan.attend_cls` by groups that cover the [CLS] rows."""
    pieces = [ClsGroup(group, scale) for group in groups]
    # Under autocast the queries are in half precision, but not the rows, which LayerNorm made.
    return attend_pieces(pieces, torch.empty_like(query), query, rows.to(query.dtype))
