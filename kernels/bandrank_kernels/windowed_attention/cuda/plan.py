"""The CUDA backend: tiles and scratch made once per batch, one launch in each layer.

In lines marked with @, tests plant mistakes (tests/emulation/README.md).
"""

import copy
import functools
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bandrank_kernels.cuda import dtype_name
from bandrank_kernels.launch import VECTOR_BYTES, Launch, in_pieces, launch
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention.capacity import Capacity
from bandrank_kernels.windowed_attention.cuda.absorbed import (
    MAX_HEADS,
    TILE_ROWS,
    AbsorbedPlan,
    choose_absorbed,
    why_absorbed_unsupported,
)
from bandrank_kernels.windowed_attention.cuda.forward import ForwardPlan, is_readable, plan_forward
from bandrank_kernels.windowed_attention.cuda.gradient import GradientPlan, GradientTables, plan_tables
from bandrank_kernels.windowed_attention.cuda.tiles import plan_candidate_tiles
from bandrank_kernels.windowed_attention.cuda.variants import Gradient
from bandrank_kernels.windowed_attention.gathered import SequenceGroup
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.vectorized import attend_cls_groups, plan_cls_groups

log = logging.getLogger(__name__)
_zeros = functools.lru_cache(32)(torch.zeros)  # which nothing changes

Run = Callable[[Launch, torch.device], None]
Key = tuple[torch.dtype, int, int]  # dtype, heads, and numbers of a head or columns of a row
Scratch = dict[str, Tensor]  # device memory of a plan's launches, by the names of their arguments


class CudaPlan(AttentionPlan):
    """The sparse cross-encoder's pattern in one launch a layer, its gradient in two (Schlatt et al. 2024, section 3).

    All index tensors of a batch are copied to the device in one transfer, at the first layer unless they were bound
    before. Scratch is allocated at the first layer and shared by the layers, so that a plan serves one stream at a
    time. Results do not depend on the order in which blocks run.
    """

    def __init__(
        self,
        rows: PackedRows,
        pattern: AttentionPattern,
        *,
        device: torch.device,
        dtype: torch.dtype,
        head_dim: int,
        capability: tuple[int, int],
        capacity: Capacity | None = None,
        run: Run = launch,
    ) -> None:
        """capacity: the size of the launches, the same for all batches that fit.  run: makes the launches.
        Raises ValueError for the reasons of `why_unsupported`, or if the batch does not fit.
        """
        self._rows, self._pattern, self._device, self._capability, self._run = rows, pattern, device, capability, run
        self._dtype, self._head_dim, self._capacity = dtype, head_dim, capacity
        self._planned = self._plan(dtype, num_heads=1, head_dim=head_dim)
        most_tiles = capacity.num_candidate_tiles(TILE_ROWS) if capacity else None  # @capacity-cls-tiles
        self._absorbed_tiles = plan_candidate_tiles(rows, TILE_ROWS, capacity=most_tiles)
        self.host_tables: Sequence[Tensor] = [
            *(torch.from_numpy(tiles) for tiles in (self._planned.tiles, self._absorbed_tiles)),
            _zeros(MAX_HEADS * self._planned.num_candidates, dtype=torch.int32),
        ]
        self._bound: Sequence[Tensor] | None = None
        self._forward_plans: dict[Key, tuple[ForwardPlan, Scratch]] = {}
        self._absorbed_plans: dict[Key, tuple[AbsorbedPlan, Scratch]] = {}

    @property
    def signature(self) -> Hashable:
        return self._planned.signature

    def bind(self, tables: Sequence[Tensor]) -> Self:
        bound = copy.copy(self)
        bound._bound, bound._forward_plans, bound._absorbed_plans = tables, {}, {}
        return bound

    @property
    def _tables(self) -> Sequence[Tensor]:
        """The tables on the device: tiles, tiles of candidates alone, and zeros to count arrivals with."""
        if self._bound is None:
            self._bound = to_device(self.host_tables, self._device)
        return self._bound

    def attend(self, qkv: Tensor) -> Tensor:
        if torch.is_grad_enabled() and qkv.requires_grad:
            return _Attend.apply(self, qkv)  # type: ignore[no-any-return, no-untyped-call]  # torch's
        return self._attend(qkv, lse=None)

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        """Runs in one launch, or in plain torch for a gradient and, which is logged, for rows without kernels."""
        if torch.is_grad_enabled() and (query.requires_grad or rows.requires_grad):
            return attend_cls_groups(self._cls_groups, query, rows, scale)
        _, num_heads, hidden_size = query.shape
        unsupported = why_absorbed_unsupported(
            num_heads=num_heads, hidden_size=hidden_size, dtype=dtype_name(query.dtype)
        )
        if unsupported is not None:
            _log_groups(unsupported)
            return attend_cls_groups(self._cls_groups, query, rows, scale)
        # Under autocast the queries are in half precision, but not the rows, which LayerNorm made.
        return self._attend_absorbed(_whole(query), rows.to(query.dtype), scale)

    def forward(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """`attend` without autograd, and the log-sum-exps that `backward` needs.

        qkv: (num_rows, 3, num_heads, head_dim), copied if the kernels cannot read it.
        Returns (num_rows, num_heads, head_dim), and (num_rows, num_heads) float32, to base 2, of each row's scores.
        """
        lse = qkv.new_empty(qkv.shape[0], qkv.shape[2], dtype=torch.float32)
        return self._attend(qkv, lse), lse

    def backward(self, towards: Tensor, qkv: Tensor, out: Tensor, lse: Tensor) -> Tensor:
        """The gradient of qkv, of its shape and dtype, contiguous.

        towards: (num_rows, num_heads, head_dim) the gradient of `out`.  out, lse: the results of `forward` for qkv.
        """
        qkv = _readable(qkv)
        towards, out, lse = _whole(towards.to(qkv.dtype)), _whole(out), _whole(lse)
        num_rows, _, num_heads, head_dim = qkv.shape
        tables, (tiles, first_vectors, totals) = self._gradient_tables
        plan = GradientPlan(dtype_name(qkv.dtype), head_dim, num_heads, self._planned.window, tables)
        result = qkv.new_empty(qkv.shape)
        requests = plan.launches(
            towards,
            qkv,
            out,
            lse,
            result=result,
            delta=qkv.new_empty((num_rows, num_heads), dtype=torch.float32),
            partials=qkv.new_empty(plan.num_partials, dtype=torch.float32),
            tiles=tiles,
            first_vectors=first_vectors,
            totals=totals,
        )
        for request in requests:
            self._run(request, qkv.device)
        return result

    def _attend(self, qkv: Tensor, lse: Tensor | None) -> Tensor:
        qkv = _readable(qkv)
        num_rows, _, num_heads, head_dim = qkv.shape
        out = qkv.new_empty((num_rows, num_heads, head_dim))
        plan, scratch = self._forward_plan(qkv.dtype, num_heads, head_dim)
        if plan.blocks:
            self._run(plan.launch(qkv, out, lse, **scratch), qkv.device)
        return out

    def _attend_absorbed(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(query)
        plan, scratch = self._absorbed_plan(query)
        if len(plan.tiles):
            self._run(plan.launch(query, in_pieces(rows), scale, out=out, **scratch), query.device)
        return out

    @cached_property
    def _cls_groups(self) -> list[SequenceGroup]:
        """Groups for `attend_cls` in plain torch, copied when first used: with kernels, only training needs them."""
        return plan_cls_groups(self._rows, self._pattern, device=self._device, dtype=self._dtype)

    @cached_property
    def _gradient_tables(self) -> tuple[GradientTables, list[Tensor]]:
        """The tables in host memory and on the device; the same for all layers, heads and dtypes."""
        tables = plan_tables(self._rows, Gradient.tile_rows)
        host = [torch.from_numpy(table) for table in (tables.tiles, tables.first_vectors, tables.totals)]
        return tables, to_device(host, self._device)

    def _plan(self, dtype: torch.dtype, *, num_heads: int, head_dim: int) -> ForwardPlan:
        return plan_forward(
            self._rows,
            self._pattern,
            num_heads=num_heads,
            head_dim=head_dim,
            dtype=dtype_name(dtype),
            capability=self._capability,
            capacity=self._capacity,
        )

    def _forward_plan(self, dtype: torch.dtype, num_heads: int, head_dim: int) -> tuple[ForwardPlan, Scratch]:
        key = dtype, num_heads, head_dim
        if key not in self._forward_plans:
            if (dtype, head_dim) == (self._dtype, self._head_dim):
                plan, tiles = replace(self._planned, num_heads=num_heads), self._tables[0]
            else:  # as under autocast, which leaves queries and keys in float32 that are turned by their positions
                plan = self._plan(dtype, num_heads=num_heads, head_dim=head_dim)
                (tiles,) = to_device([torch.from_numpy(plan.tiles)], self._device)
            self._forward_plans[key] = plan, self._scratch(plan, tiles)
        return self._forward_plans[key]

    def _absorbed_plan(self, query: Tensor) -> tuple[AbsorbedPlan, Scratch]:
        _, num_heads, hidden_size = query.shape
        key = query.dtype, num_heads, hidden_size
        if key not in self._absorbed_plans:
            variant = choose_absorbed(dtype_name(query.dtype), hidden_size, self._capability)
            plan = AbsorbedPlan(variant, self._absorbed_tiles, self._planned.num_candidates, num_heads, hidden_size)
            self._absorbed_plans[key] = plan, self._scratch(plan, self._tables[1])
        return self._absorbed_plans[key]

    def _scratch(self, plan: ForwardPlan | AbsorbedPlan, tiles: Tensor) -> Scratch:
        arrivals = self._tables[2]
        if plan.num_arrivals > len(arrivals):  # of more heads than most models have
            arrivals = torch.zeros(plan.num_arrivals, dtype=torch.int32, device=self._device)
        return {"tiles": tiles, "partials": torch.empty(plan.num_partials, device=self._device), "arrivals": arrivals}


@functools.cache
def _log_groups(reason: str) -> None:
    """Logs a reason once per process."""
    log.warning("plain torch attends with [CLS] in the last layer: %s", reason)


def _readable(qkv: Tensor) -> Tensor:
    """The tensor, or a copy that the kernels can read."""
    # Not contiguous(), which does not move a tensor that starts between two 16-byte addresses.
    return qkv if is_readable(qkv) else qkv.clone(memory_format=torch.contiguous_format)


def _whole(tensor: Tensor) -> Tensor:
    """The tensor, or a contiguous copy, from a 16-byte address on."""
    if tensor.is_contiguous() and tensor.data_ptr() % VECTOR_BYTES == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: CudaPlan, qkv: Tensor) -> Tensor:  # autograd's context has no type
        out, lse = plan.forward(qkv)
        ctx.plan = plan
        ctx.save_for_backward(qkv, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.plan.backward(gradient, *ctx.saved_tensors)
