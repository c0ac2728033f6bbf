"""Attention in texts where each row sees only its neighbours, as in ModernBERT's local layers (Warner et al. 2024,
arXiv 2412.13663, section 2.1).
"""

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.arrays import Offsets, offsets
from bandrank_kernels.dispatch import Backend, choose_backend
from bandrank_kernels.native.checks import check
from bandrank_kernels.windowed_attention.banded import BlockChunk, plan_blocks
from bandrank_kernels.windowed_attention.gathered import SequenceGroup, plan_groups
from bandrank_kernels.windowed_attention.native import attend_whole
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.pieces import attend_pieces, on_device, split
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.reference import attend_masked, dense_mask
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.spans import Spans, tasks_of
from bandrank_kernels.windowed_attention.varlen import TextsPlan, why_no_varlen


def plan_local_attention(
    cu_seqlens: Offsets,
    window: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    backend: Backend = "auto",
) -> AttentionPlan:
    """The plan in which each row attends to the rows of its text at most `window` positions away.

    cu_seqlens: (n + 1,) offsets of the texts' rows, which lie end to end.  dtype, head_dim: of queries and keys.
    On a GPU, torch's FlashAttention computes it if it can run. Raises BackendUnavailable for "cuda" if it cannot.
    """
    no_flash = why_no_varlen(device=device, dtype=dtype, head_dim=head_dim)
    if no_flash is None and backend in {"auto", "cuda"}:
        return TextsPlan(cu_seqlens, device=device, window=window)
    match choose_backend(backend, device, unsupported=no_flash):
        case "reference":
            return DenseLocalPlan(cu_seqlens, window, device=device)
        case "native":
            return NativeLocalPlan(cu_seqlens, window)
    return LocalPlan(cu_seqlens, window, device=device, dtype=dtype)


class LocalPlan(AttentionPlan):
    """Attention in plain torch: of texts whose rows all see each other whole, of runs of longer ones by blocks of the
    band. Memory is linear in rows.
    """

    def __init__(self, cu_seqlens: Offsets, window: int, *, device: torch.device, dtype: torch.dtype) -> None:
        lengths = np.diff(cu_seqlens)
        whole = lengths <= window + 1
        short = Spans(cu_seqlens[:-1][whole, None], lengths[whole, None])
        pieces: list[SequenceGroup | BlockChunk] = [*plan_groups(short, short, dtype)]
        for begin, end in np.flatnonzero(np.diff(~whole, prepend=False, append=False)).reshape(-1, 2):
            first = int(cu_seqlens[begin])
            rows, pattern = _as_candidates(cu_seqlens[begin : end + 1] - first, window)
            pieces += plan_blocks(rows, pattern, dtype, first_row=first)
        self.pieces = on_device(pieces, device)

    def attend(self, qkv: Tensor) -> Tensor:
        return attend_pieces(self.pieces, qkv.new_empty(qkv.shape[0], *qkv.shape[2:]), *split(qkv))


class DenseLocalPlan(AttentionPlan):
    """Attention under a dense mask, quadratic in rows: for tests."""

    def __init__(self, cu_seqlens: Offsets, window: int, *, device: torch.device) -> None:
        rows, pattern = _as_candidates(cu_seqlens, window)
        first = rows.first_candidate_row
        self._mask = dense_mask(rows, pattern)[first:, first:].to(device)

    def attend(self, qkv: Tensor) -> Tensor:
        return attend_masked(qkv, self._mask)


class NativeLocalPlan(AttentionPlan):
    """Attention by the CPU kernels."""

    def __init__(self, cu_seqlens: Offsets, window: int) -> None:
        self._num_rows = int(cu_seqlens[-1])
        self._tasks = tasks_of(Spans(cu_seqlens[:-1, None], np.diff(cu_seqlens)[:, None]), None, window)

    def attend(self, qkv: Tensor) -> Tensor:
        check("qkv", qkv, self._num_rows, 3, None, None)
        return self.attend_grouped(*qkv.unbind(1))

    def attend_grouped(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_whole(self._tasks, (self._num_rows,) * 2, query, key, value)


def _as_candidates(cu_seqlens: Offsets, window: int) -> tuple[PackedRows, AttentionPattern]:
    """The texts as candidates of an empty query, which see neither it nor their [CLS]."""
    rows = PackedRows(offsets([0]), cu_seqlens, np.zeros(len(cu_seqlens) - 1, np.int64))
    return rows, AttentionPattern(window, query_to_cls=False, query_to_candidate=False, candidate_to_cls=False)
