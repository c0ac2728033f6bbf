"""The slow, obvious backend: a dense boolean mask over all packed rows. The other backends are tested against it."""

import torch
from torch import Tensor

from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.rows import PackedRows


def dense_mask(rows: PackedRows, pattern: AttentionPattern) -> Tensor:
    """(num_rows, num_rows) bool: whether row i may attend to row j, row by row as the pattern defines it."""
    allowed = torch.zeros(rows.num_rows, rows.num_rows, dtype=torch.bool)
    for index in range(rows.num_queries):
        query = rows.query_rows(index)
        allowed[query.start : query.stop, query.start : query.stop] = True
    for candidate in range(rows.num_candidates):
        cls = candidate
        query = rows.query_rows(int(rows.candidate_query[candidate]))
        text = rows.candidate_rows(candidate)
        allowed[cls, cls] = True
        allowed[cls, query.start : query.stop] = pattern.cls_to_query
        allowed[cls, text.start : text.stop] = pattern.cls_to_candidate
        if pattern.query_to_cls:
            allowed[query.start : query.stop, cls] = True
        if pattern.query_to_candidate:
            allowed[query.start : query.stop, text.start : text.stop] = True
        allowed[text.start : text.stop, cls] = pattern.candidate_to_cls
        allowed[text.start : text.stop, query.start : query.stop] = pattern.candidate_to_query
        for row in text:
            left, right = text.start, text.stop
            if pattern.window is not None:
                left, right = max(left, row - pattern.window), min(right, row + pattern.window + 1)
            allowed[row, left:right] = True
    return allowed


def attend_masked(qkv: Tensor, mask: Tensor) -> Tensor:
    """(num_rows, num_heads, head_dim) attention under a dense mask. qkv: (num_rows, 3, num_heads, head_dim)."""
    query, key, value = qkv.unbind(1)
    scores = torch.einsum("ihd,jhd->hij", query, key) * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, value)


class ReferencePlan(AttentionPlan):
    """Computes in the dtype of its inputs, float64 too. Memory is quadratic in rows: for tests."""

    def __init__(self, rows: PackedRows, pattern: AttentionPattern, *, device: torch.device) -> None:
        self._num_candidates = rows.num_candidates
        self._mask = dense_mask(rows, pattern).to(device)

    def attend(self, qkv: Tensor) -> Tensor:
        return attend_masked(qkv, self._mask)

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        scores = torch.einsum("ihe,je->ihj", query, rows) * scale
        visible = self._mask[: self._num_candidates, None, :]
        return torch.einsum("ihj,je->ihe", scores.masked_fill(~visible, -torch.inf).softmax(-1), rows)
