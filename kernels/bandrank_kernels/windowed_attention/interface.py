"""The functions that choose a backend: plan once per batch, then attend in every layer."""

import torch
from torch import Tensor

from bandrank_kernels.cuda import dtype_name
from bandrank_kernels.dispatch import Backend, BackendUnavailable, choose_backend
from bandrank_kernels.launch import cuda_obstacle, device_capability, gpu_obstacle
from bandrank_kernels.windowed_attention.capacity import Capacity
from bandrank_kernels.windowed_attention.cuda.absorbed import why_absorbed_unsupported
from bandrank_kernels.windowed_attention.cuda.forward import why_unsupported
from bandrank_kernels.windowed_attention.cuda.plan import CudaPlan
from bandrank_kernels.windowed_attention.native import NativePlan, why_not_native
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.reference import ReferencePlan
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.varlen import JoinedPlan, TextsPlan, why_no_varlen
from bandrank_kernels.windowed_attention.vectorized import VectorizedPlan


def plan_attention(
    rows: PackedRows,
    pattern: AttentionPattern,
    *,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    backend: Backend = "auto",
    capacity: Capacity | None = None,
) -> AttentionPlan:
    """The plan of one batch for the backend that `choose_backend` names.

    dtype, head_dim: those of the queries, keys and values; the kernels are built for some.
    backend: "native", the CPU kernels, must be asked for, and gives no gradients. "auto" and "cuda" take torch's
    FlashAttention for full attention and for texts by themselves, if it can run.
    capacity: the size of the CUDA kernels' launches, the same for all batches that fit; plain torch ignores it.
    Raises ValueError if candidates share a query that the pattern makes depend on them, BackendUnavailable.
    """
    rows.check(pattern)
    texts = rows.num_candidates == 0 and pattern.shares_queries  # queries alone, whatever candidates would see
    if backend in {"auto", "cuda"} and flash_runs(pattern, device=device, dtype=dtype, head_dim=head_dim, texts=texts):
        if not texts:
            return JoinedPlan(rows, device=device, capacity=capacity)
        num_texts, longest = (capacity.num_candidates, capacity.query_rows) if capacity else (None, None)
        return TextsPlan(rows.cu_queries, device=device, num_texts=num_texts, longest=longest)
    if texts and pattern.is_apart:
        pattern = AttentionPattern.sparse(None)
    unsupported = _why_unsupported(pattern, device=device, dtype=dtype, head_dim=head_dim)
    match choose_backend(backend, device, unsupported=unsupported):
        case "reference":
            return ReferencePlan(rows, pattern, device=device)
        case "cuda":
            capability = device_capability(device)
            return CudaPlan(
                rows,
                pattern,
                device=device,
                dtype=dtype,
                head_dim=head_dim,
                capability=capability,
                capacity=capacity,
            )
        case "native":
            if (reason := why_not_native(device, dtype, head_dim)) is not None:
                raise BackendUnavailable(f"backend 'native' cannot run: {reason}")
            return NativePlan(rows, pattern)
    return VectorizedPlan(rows, pattern, device=device, dtype=dtype)


def why_no_kernels(pattern: AttentionPattern, *, device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why plain torch computes such attention when "auto" chooses, as a clause; None if CUDA kernels do, ours or
    torch's FlashAttention.

    pattern: `AttentionPattern.apart()` stands for texts without candidates.
    """
    if flash_runs(pattern, device=device, dtype=dtype, head_dim=head_dim, texts=pattern.is_apart):
        return None
    if pattern.is_apart:
        pattern = AttentionPattern.sparse(None)
    needed = gpu_obstacle if pattern.is_full else cuda_obstacle
    return needed(device) or _why_unsupported(pattern, device=device, dtype=dtype, head_dim=head_dim)


def flash_runs(
    pattern: AttentionPattern, *, device: torch.device, dtype: torch.dtype, head_dim: int, texts: bool = False
) -> bool:
    """Whether torch's FlashAttention computes such attention when "auto" chooses. texts: of texts by themselves."""
    return (pattern.is_full or texts) and why_no_varlen(device=device, dtype=dtype, head_dim=head_dim) is None


def _why_unsupported(
    pattern: AttentionPattern, *, device: torch.device, dtype: torch.dtype, head_dim: int
) -> str | None:
    """Why CUDA kernels cannot run this attention, as a clause; None if they can."""
    if pattern.is_full:
        return why_no_varlen(device=device, dtype=dtype, head_dim=head_dim)
    return why_unsupported(pattern, head_dim=head_dim, dtype=dtype_name(dtype))


def why_not_one_launch(*, num_heads: int, hidden_size: int, dtype: torch.dtype) -> str | None:
    """Why the CUDA backend's `attend_cls` runs plain torch for such rows, as a clause; None if it does not."""
    return why_absorbed_unsupported(num_heads=num_heads, hidden_size=hidden_size, dtype=dtype_name(dtype))


def windowed_attention(
    qkv: Tensor, rows: PackedRows, pattern: AttentionPattern, *, backend: Backend = "auto"
) -> Tensor:
    """Attention of one layer over packed rows (Schlatt et al. 2024, 3.2); for more layers use `plan_attention`.

    qkv: (num_rows, 3, num_heads, head_dim).  Returns (num_rows, num_heads, head_dim).
    Raises ValueError if the shape does not fit the rows, and the errors of `plan_attention`.
    """
    if qkv.dim() != 4 or qkv.shape[:2] != (rows.num_rows, 3):
        raise ValueError(f"qkv must be ({rows.num_rows}, 3, num_heads, head_dim), got {tuple(qkv.shape)}")
    plan = plan_attention(rows, pattern, device=qkv.device, dtype=qkv.dtype, head_dim=qkv.shape[3], backend=backend)
    return plan.attend(qkv)
