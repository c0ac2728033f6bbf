"""Runs the forward kernels on the CPU, and computes what they should give in float64."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from emulation.compiled import EmulationError, Schedule
from emulation.launches import emulate
from torch import Tensor

from bandrank_kernels.cuda import Dtype
from bandrank_kernels.launch import Kernel
from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows
from bandrank_kernels.windowed_attention.cuda.forward import ForwardPlan, plan_forward

Array = npt.NDArray[Any]
AMPERE, TURING = (8, 0), (7, 5)
# Bounds of ||out - exact|| / ||exact|| on N(0, 1) inputs, where `exact` gets the same rounded inputs. They are of the
# order of one rounding of the output (2 ** -11 in float16, 2 ** -8 in bfloat16); the weights are rounded as well.
BARS: dict[Dtype, float] = {"float16": 4e-4, "bfloat16": 3e-3, "float32": 2e-6}
LSE_BAR = 1e-5


@dataclass(frozen=True)
class Attended:
    """out: (num_rows, num_heads, head_dim) float64.  lse: (num_rows, num_heads) float64, base 2."""

    out: Array
    lse: Array


def to_bits(numbers: Array, dtype: Dtype) -> Array:
    """The numbers rounded to the dtype, bfloat16 as uint16."""
    if dtype != "bfloat16":
        return numbers.astype(dtype)
    bits = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def as_tensor(stored: Array, dtype: Dtype) -> Tensor:
    """Stored numbers as a tensor in the same memory."""
    return torch.from_numpy(stored).view(getattr(torch, dtype))


def from_bits(stored: Array, dtype: Dtype) -> Array:
    """The stored numbers in float64."""
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


def random_qkv(rows: PackedRows, dtype: Dtype, num_heads: int, head_dim: int, seed: int = 0) -> Array:
    """(num_rows, 3, num_heads, head_dim) numbers of N(0, 1), stored as `to_bits` does."""
    rng = np.random.default_rng(seed)
    return to_bits(rng.standard_normal((rows.num_rows, 3, num_heads, head_dim), np.float32), dtype)


def plan(
    rows: PackedRows, window: int | None, dtype: Dtype, *, num_heads: int = 2, head_dim: int = 32, **options: Any
) -> ForwardPlan:
    """The plan for a card with tensor cores, unless `options` say otherwise."""
    pattern = AttentionPattern(window, query_to_cls=False, query_to_candidate=False)
    options = {"capability": AMPERE, **options}
    return plan_forward(rows, pattern, num_heads=num_heads, head_dim=head_dim, dtype=dtype, **options)


def attend(
    plan: ForwardPlan,
    qkv: Array,
    *,
    schedule: Schedule = "depth first",
    seed: int = 0,
    kernel: Kernel | None = None,
) -> Attended:
    """Runs the kernel. Outputs and scratch memory start as NaN.

    qkv: may have any stride between rows.  kernel: used in place of the plan's.  Raises EmulationError if the kernel
    leaves a counter set.
    """
    num_rows, _, num_heads, head_dim = qkv.shape
    dtype = plan.variant.dtype
    rows = as_tensor(qkv, dtype)
    out = torch.full((num_rows, num_heads, head_dim), torch.nan, dtype=rows.dtype)
    lse = torch.full((num_rows, num_heads), torch.nan)
    partials = torch.full((plan.num_partials,), torch.nan)
    arrivals = torch.zeros(plan.num_arrivals, dtype=torch.int32)
    launch = plan.launch(rows, out, lse, tiles=torch.from_numpy(plan.tiles), partials=partials, arrivals=arrivals)
    if plan.blocks:
        emulate(replace(launch, kernel=kernel or launch.kernel), schedule, seed)
    if arrivals.any():
        raise EmulationError(f"{int(arrivals.count_nonzero())} counters are not zero after the launch")
    return Attended(out.double().numpy(), lse.double().numpy())


def exact(qkv: Array, rows: PackedRows, window: int | None) -> Attended:
    """The right output in float64, computed one sequence at a time from the definition of the pattern.

    qkv: (num_rows, 3, num_heads, head_dim) float64.
    """
    num_rows, _, num_heads, head_dim = qkv.shape
    result = Attended(np.empty((num_rows, num_heads, head_dim)), np.empty((num_rows, num_heads)))
    write = partial(_attend_rows, qkv, result)
    for query in range(rows.num_queries):
        members = np.array(rows.query_rows(query), np.int64)
        write(members, np.broadcast_to(members, (len(members), len(members))))
    for candidate in range(rows.num_candidates):
        query = np.array(rows.query_rows(int(rows.candidate_query[candidate])), np.int64)
        members = np.array(rows.candidate_rows(candidate), np.int64)
        seen_by_all = np.concatenate([[candidate], query])
        write(np.array([candidate]), np.concatenate([seen_by_all, members])[None])
        width = len(members) if window is None else min(window, len(members))
        for begin in range(0, len(members), 256):  # a block at a time: its rows and their windows
            block = np.arange(begin, min(begin + 256, len(members)))
            near = np.arange(max(0, begin - width), min(block[-1] + width + 1, len(members)))
            hidden = np.zeros((len(block), len(seen_by_all) + len(near)), bool)
            hidden[:, len(seen_by_all) :] = np.abs(block[:, None] - near[None, :]) > width
            keys = np.concatenate([seen_by_all, members[near]])
            write(members[block], np.broadcast_to(keys, hidden.shape), hidden)
    return result


def _attend_rows(qkv: Array, result: Attended, members: Array, keys: Array, hidden: Array | bool = False) -> None:
    """Writes the output of some rows into `result`.

    members: (n,) the rows.  keys: (n, m) the rows that they see, equal for all members.  hidden: (n, m) bool, the keys
    that a member does not see after all.
    """
    if not len(members):
        return
    query, key, value = qkv[members, 0], qkv[keys[0], 1], qkv[keys[0], 2]
    scores = np.einsum("nhd,mhd->hnm", query, key, optimize=True) / np.sqrt(qkv.shape[3])
    scores = np.where(hidden, -np.inf, scores)
    high = scores.max(-1, keepdims=True)
    weights = np.exp(scores - high)
    sums = weights.sum(-1, keepdims=True)
    result.out[members] = np.einsum("hnm,mhd->nhd", weights / sums, value, optimize=True)
    result.lse[members] = (high + np.log(sums))[..., 0].T / np.log(2)


def relative_error(actual: Attended, truth: Attended) -> float:
    """The relative error of the whole output by its norm; infinite if an output or a log-sum-exp is NaN."""
    if np.isnan(actual.out).any() or np.isnan(actual.lse).any():
        return np.inf
    return float(np.linalg.norm(actual.out - truth.out) / np.linalg.norm(truth.out)) if truth.out.size else 0.0


def lse_error(actual: Attended, truth: Attended) -> float:
    """The largest error of a log-sum-exp; infinite if one is NaN."""
    differences = np.abs(actual.lse - truth.lse)
    return float(np.where(np.isnan(differences), np.inf, differences).max(initial=0.0))
