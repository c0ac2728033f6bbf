"""One function behind which the backends stand: plan once per batch, then attend in every layer."""

import torch
from torch import Tensor

from bandrank_kernels.dispatch import Backend, choose_backend
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.reference import ReferencePlan
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.vectorized import VectorizedPlan


def plan_attention(
    rows: PackedRows, pattern: AttentionPattern, *, device: torch.device, dtype: torch.dtype, backend: Backend = "auto"
) -> AttentionPlan:
    """The plan of one batch for the backend that `choose_backend` names.

    Raises ValueError if candidates share a query that the pattern makes depend on them, BackendUnavailable.
    """
    rows.check(pattern)
    if choose_backend(backend, device) == "reference":
        return ReferencePlan(rows, pattern, device=device)
    return VectorizedPlan(rows, pattern, device=device, dtype=dtype)


def windowed_attention(
    qkv: Tensor, rows: PackedRows, pattern: AttentionPattern, *, backend: Backend = "auto"
) -> Tensor:
    """Attention of one layer over packed rows; `AttentionPlan.attend` for callers with one layer (Schlatt et al.
    2024, 3.2).

    qkv: (num_rows, 3, num_heads, head_dim).  Returns (num_rows, num_heads, head_dim).
    Raises ValueError if the shape does not fit the rows, and what `plan_attention` raises.
    """
    if qkv.dim() != 4 or qkv.shape[:2] != (rows.num_rows, 3):
        raise ValueError(f"qkv must be ({rows.num_rows}, 3, num_heads, head_dim), got {tuple(qkv.shape)}")
    return plan_attention(rows, pattern, device=qkv.device, dtype=qkv.dtype, backend=backend).attend(qkv)
