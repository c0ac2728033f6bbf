"""Attention with a bias for the distance of two rows, on packed rows (Raffel et al. 2020, "T5", arXiv 1910.10683,
section 2.1), as MPNet has it: all layers share one table, and scores are divided by sqrt(head_dim).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bandrank.models.layers.chunked_attention import (
    Chunk,
    ChunkedBlock,
    ChunkedPlan,
    DistancePlan,
    attend_in_chunks,
    reach,
)
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    AttentionPlan,
    DistanceBiases,
    Layout,
    NativePlan,
    PackedRows,
    lay_out,
)

BUCKETS, FARTHEST = 32, 128  # rows of the table, half of them for either sign; farther distances share the last row


def buckets(farthest: int) -> Tensor:
    """(2 * farthest + 1,) int64 row of the table for each distance, of a query row from a key row, from -farthest on.

    Near distances have a row each, farther ones share rows whose width grows like powers.
    """
    distance = torch.arange(-farthest, farthest + 1)
    half, near = BUCKETS // 2, BUCKETS // 4
    away = distance.abs()
    # float32 in this order of operations, as in the models' training
    grown = torch.log(away.clamp(min=1).float() / near) / math.log(FARTHEST / near) * (half - near)
    far = (near + grown.long()).clamp(max=half - 1)
    return torch.where(away < near, away, far) + half * (distance < 0)


@dataclass(frozen=True)
class RelativeBiasPlan(ChunkedPlan):
    """The plan of a batch.

    bias: (2 * reach + 1, num_heads) float32, for each distance of a query row from a key row, ascending.
    """

    bias: Tensor


@dataclass(frozen=True)
class NativeBiasPlan(DistancePlan):
    """The plan of a batch for the CPU kernels. bias: as in RelativeBiasPlan."""

    plan: NativePlan
    bias: Tensor


class RelativeBias(nn.Module):
    """The table of biases that all blocks of an encoder share."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, num_heads)

    def plan(self, rows: PackedRows, pattern: AttentionPattern, *, native: bool = False) -> AttentionPlan:
        """The plan of a batch; `native`: for the CPU kernels.

        Raises ValueError if candidates share a query that the pattern makes depend on them.
        """
        device = self.table.weight.device
        farthest = reach(rows)
        (of_distance,) = to_device([buckets(farthest)], device)
        bias = self.table(of_distance).float()
        if native:
            rows.check(pattern)
            return NativeBiasPlan(NativePlan(rows, pattern), bias)
        return RelativeBiasPlan(lay_out(rows, pattern, device=device), farthest, bias)


class RelativeBiasBlock(ChunkedBlock[RelativeBiasPlan]):
    """BERT's block with a bias in its attention."""

    attention = "attention with relative biases"

    def attend(self, qkv: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
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
        self, layouts: Sequence[Layout], qkv: Tensor, positions: Tensor, plan: RelativeBiasPlan
    ) -> Tensor:
        return attend_in_chunks(layouts, partial(self._attend_chunk, qkv, positions, plan), qkv)

    def _attend_chunk(self, qkv: Tensor, positions: Tensor, plan: RelativeBiasPlan, chunk: Chunk) -> Tensor:
        """(n * num_rows, hidden_size) attended values of a chunk's rows."""
        query, key, value = chunk.gather(qkv)
        scores = (query * self.head_dim**-0.5 @ key.transpose(-1, -2)).float()  # (n, num_heads, num_rows, num_keys)
        bias = plan.bias[chunk.distances(positions) + plan.reach]  # (n, num_rows, num_keys, num_heads)
        return chunk.average(scores + bias.permute(0, 3, 1, 2), value)
