"""Attention with a bias for the distance of two rows, on packed rows: scores are divided by sqrt(head_dim), and all
layers of an encoder add the same biases.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bandrank.models.layers.block import PostNormBlock, PreNormBlock
from bandrank.models.layers.chunked_attention import (
    Chunk,
    ChunkedBlock,
    ChunkedPlan,
    DistancePlan,
    attend_in_chunks,
    reach,
)
from bandrank.models.layers.key_mask import KeyMaskPlan
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    AttentionPlan,
    DistanceBiases,
    Layout,
    NativePlan,
    PackedRows,
    lay_out,
)


@dataclass(frozen=True)
class DistanceBiasPlan(ChunkedPlan):
    """The plan of a batch.

    bias: (2 * reach + 1, num_heads) float32, for each distance of a query row from a key row, ascending.
    """

    bias: Tensor


@dataclass(frozen=True)
class NativeBiasPlan(DistancePlan):
    """The plan of a batch for the CPU kernels. bias: as in DistanceBiasPlan."""

    plan: NativePlan
    bias: Tensor


class DistanceBias(nn.Module, ABC):
    """The biases that all blocks of an encoder share."""

    @abstractmethod
    def biases(self, farthest: int, device: torch.device) -> Tensor:
        """(2 * farthest + 1, num_heads) float32 bias for each distance of a query row from a key row, from -farthest
        on.
        """

    def plan(
        self, rows: PackedRows, pattern: AttentionPattern, device: torch.device, *, native: bool = False
    ) -> AttentionPlan:
        """The plan of a batch; `native`: for the CPU kernels.

        Raises ValueError if candidates share a query that the pattern makes depend on them.
        """
        farthest = reach(rows)
        bias = self.biases(farthest, device)
        if native:
            rows.check(pattern)
            return NativeBiasPlan(NativePlan(rows, pattern), bias)
        return DistanceBiasPlan(lay_out(rows, pattern, device=device), farthest, bias)

    def plan_masked(self, seen: Tensor, dtype: torch.dtype) -> KeyMaskPlan:
        """The plan of texts of equal length, as `KeyMaskPlan.of`. seen: (n, len) bool, False for masked keys."""
        length = seen.shape[1]
        index = torch.arange(length, device=seen.device)
        distances = index[:, None] - index + length - 1
        bias = self.biases(length - 1, seen.device)[distances].permute(2, 0, 1)  # (num_heads, len, len)
        return KeyMaskPlan(KeyMaskPlan.of(seen, dtype).bias + bias.to(dtype))


class DistanceBiasAttention(ChunkedBlock[DistanceBiasPlan]):
    """A block whose attention adds such biases."""

    def attend(self, qkv: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        if isinstance(plan, KeyMaskPlan):
            return plan.attend(qkv).flatten(1)
        if not isinstance(plan, NativeBiasPlan):
            return super().attend(qkv, positions, plan)
        return plan.plan.attend(qkv, DistanceBiases.of(plan.bias, positions)).flatten(1)

    def forward_cls(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, num_candidates: int) -> Tensor:
        if not isinstance(plan, NativeBiasPlan):
            return super().forward_cls(hidden, positions, plan, num_candidates)
        biases = DistanceBiases.of(plan.bias, positions)
        attended = plan.plan.attend_first(self.project(hidden, positions), num_candidates, biases)
        return self._after_attention(attended.flatten(1), hidden[:num_candidates])

    def attend_layouts(
        self, layouts: Sequence[Layout], qkv: Tensor, positions: Tensor, plan: DistanceBiasPlan
    ) -> Tensor:
        return attend_in_chunks(layouts, partial(self._attend_chunk, qkv, positions, plan), qkv)

    def _attend_chunk(self, qkv: Tensor, positions: Tensor, plan: DistanceBiasPlan, chunk: Chunk) -> Tensor:
        """(n * num_rows, hidden_size) attended values of a chunk's rows."""
        query, key, value = chunk.gather(qkv)
        scores = (query * self.head_dim**-0.5 @ key.transpose(-1, -2)).float()  # (n, num_heads, num_rows, num_keys)
        bias = plan.bias[chunk.distances(positions) + plan.reach]  # (n, num_rows, num_keys, num_heads)
        return chunk.average(scores + bias.permute(0, 3, 1, 2), value)


class DistanceBiasBlock(DistanceBiasAttention, PostNormBlock):
    """Of which the norms follow each half."""


class PreNormBiasBlock(DistanceBiasAttention, PreNormBlock):
    """Of which the norms precede each half."""
