"""Which rows attend to which, as padded index tensors: for attention whose scores no backend computes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bandrank_kernels.windowed_attention.banded import BlockChunk
from bandrank_kernels.windowed_attention.gathered import SequenceGroup
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.vectorized import VectorizedPlan


@dataclass(frozen=True)
class Layout:
    """n attentions, padded together.

    query_index: (n, num_rows), key_index: (n, num_keys) row numbers; padding has the number of any row.
    bias: (n, 1, num_rows or 1, num_keys) 0, or -inf where a row does not see a key; None if all rows see all keys.
    out_rows: the row numbers of the queries that are not padding.  out_indices: their indices in the flattened
    (n * num_rows).
    """

    query_index: Tensor
    key_index: Tensor
    bias: Tensor | None
    out_rows: Tensor
    out_indices: Tensor


@dataclass(frozen=True)
class Layouts:
    """A batch's attention. rows: layouts in which each row is a query once.  cls: the same for the [CLS] rows alone."""

    rows: Sequence[Layout]
    cls: Sequence[Layout]


def lay_out(rows: PackedRows, pattern: AttentionPattern, *, device: torch.device) -> Layouts:
    """The layouts of a batch, whose size is linear in its rows.

    Raises ValueError if candidates share a query that the pattern makes depend on them.
    """
    rows.check(pattern)
    plan = VectorizedPlan(rows, pattern, device=device, dtype=torch.float32)
    return Layouts([_layout(piece) for piece in plan.pieces], [_layout(group) for group in plan.cls_groups])


def _layout(piece: SequenceGroup | BlockChunk) -> Layout:
    if isinstance(piece, SequenceGroup):
        return Layout(piece.query_index, piece.key_index, piece.key_bias, piece.out_rows, piece.out_indices)
    inside = piece.row_range
    rows = torch.arange(inside.start, inside.stop, device=piece.bias.device)
    return Layout(rows.view(len(piece.bias), -1), piece.key_index, piece.bias, rows, rows - inside.start)
