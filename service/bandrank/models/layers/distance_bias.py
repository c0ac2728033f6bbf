"""Attention with a bias for the distance of two rows, on packed rows: scores are divided by sqrt(head_dim), and all
layers of an encoder add the same biases.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

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
from bandrank_kernels.arrays import ranges
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    AttentionPlan,
    DistanceBiases,
    Layout,
    NativePlan,
    PackedRows,
    lay_out,
)
from bandrank_kernels.windowed_attention.spans import candidate_spans, cls_spans, query_spans


@dataclass(frozen=True)
class DistanceBiasPlan(ChunkedPlan):
    """The plan of a batch.

    bias: (2 * reach + 1, num_heads) float32, for each distance of a query row from a key row, ascending.
    sequences: the rows of each sequence, ascending in position, if all see each other on a CPU; else None.
    """

    bias: Tensor
    sequences: Sequence[Tensor] | None

    def attend(self, qkv: Tensor) -> Tensor:
        """(total, hidden_size) attended values, by `sequences`: a row has the same bits in any batch.

        Query rows are in descending order, so that the biases of a row are those of the row before from the second on,
        and all are a view of the table.
        """
        assert self.sequences is not None, "some rows do not see each other. This is a bug."
        out = torch.empty_like(qkv[:, 0])
        table = self._descending.to(torch.promote_types(torch.float32, qkv.dtype))  # torch misreads float32 in float64
        for rows in self.sequences:
            backwards, length = rows.flip(0), len(rows)
            query, key, value = (
                qkv[:, part].index_select(0, index).transpose(0, 1)[None]
                for part, index in enumerate((backwards, rows, rows))
            )
            biases = table[:, self.reach + 1 - length : self.reach + length].unfold(1, length, 1)[None]
            attended = scaled_dot_product_attention(query, key, value, attn_mask=biases)
            out.index_copy_(0, backwards, attended[0].transpose(0, 1))
        return out.flatten(1)

    @cached_property
    def _descending(self) -> Tensor:
        """(num_heads, 2 * reach + 1) biases, those of the farthest key rows behind the query row first."""
        return self.bias.flip(0).T.contiguous()


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
        sequences = _sequences(rows, pattern) if device.type == "cpu" else None
        return DistanceBiasPlan(lay_out(rows, pattern, device=device), farthest, bias, sequences)

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
        if isinstance(plan, NativeBiasPlan):
            return plan.plan.attend(qkv, DistanceBiases.of(plan.bias, positions)).flatten(1)
        own = self._own(plan)
        if own.sequences is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return super().attend(qkv, positions, plan)
        return own.attend(qkv)

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
    """Such a block, with BERT's norms, which follow each sublayer."""


class PreNormBiasBlock(DistanceBiasAttention, PreNormBlock):
    """Such a block, with norms that precede each sublayer."""


def _sequences(rows: PackedRows, pattern: AttentionPattern) -> list[Tensor] | None:
    """The rows of each sequence, if all of them see each other: candidates with full attention, or queries alone."""
    spans = query_spans(rows)
    if rows.num_candidates:
        if not pattern.is_full:
            return None
        spans = cls_spans(rows).join(spans).join(candidate_spans(rows))
    flat = torch.from_numpy(ranges(spans.starts.ravel(), spans.lengths.ravel()))
    return [each for each in torch.split(flat, spans.totals.tolist()) if len(each)]
