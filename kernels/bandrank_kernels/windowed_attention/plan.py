"""The interface of a backend's plan for one batch."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Self

import torch
from torch import Tensor

from bandrank_kernels.native.tensors import PackedLayer


class AttentionPlan(ABC):
    """The index tensors, masks and tile lists that all layers share, made once per batch on one device.

    host_tables: its tensors that are still in host memory, so that they can travel with the batch's other inputs
    (`bind`). Tables that are not bound are copied to the device when they are first needed.
    attends_each: whether `attend_each` costs less than `attend`.
    """

    host_tables: Sequence[Tensor] = ()
    attends_each: bool = False

    @property
    def signature(self) -> Hashable:
        """All that its launches depend on, except its capacity, the contents of its tables and addresses."""
        return None

    def bind(self, tables: Sequence[Tensor]) -> Self:
        """The same plan with new scratch, on copies of its `host_tables` that are on the device."""
        assert not tables, "tables for a plan that has none in host memory. This is a bug."
        return self

    @abstractmethod
    def attend(self, qkv: Tensor) -> Tensor:
        """Attention of every row over the keys that the pattern gives it, one softmax over all of them.

        qkv: (num_rows, 3, num_heads, head_dim), any stride between rows.  Returns (num_rows, num_heads, head_dim).
        Scores are scaled by head_dim ** -0.5. Positions outside the candidate are not keys: they take no part in the
        softmax.
        """

    def attend_grouped(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`attend` with fewer heads in key and value, each shared by equally many of queries (Ainslie et al. 2023)."""
        return self.attend(stacked(query, key, value))

    def attend_first(self, qkv: Tensor, num_candidates: int) -> Tensor:
        """(num_candidates, num_heads, head_dim) what `attend` gives for the [CLS] rows, which come first."""
        return self.attend(qkv)[:num_candidates]

    def attend_each(self, qkv: Tensor, rows: Tensor) -> Tensor:
        """(n, num_heads, head_dim) what `attend` gives for one row of each text. rows: (n,) in the order of texts."""
        return self.attend(qkv)[rows]

    def layer(self, hidden: Tensor, layer: PackedLayer) -> Tensor | None:
        """(num_rows, hidden_size) the output of a whole layer; None if this plan does not compute whole layers.

        hidden: (num_rows, hidden_size) float32, its input.
        """
        del hidden, layer
        return None

    def layer_first(self, hidden: Tensor, layer: PackedLayer, num_candidates: int) -> Tensor | None:
        """(num_candidates, hidden_size) what `layer` gives for the [CLS] rows, which come first."""
        del hidden, layer, num_candidates
        return None

    def layers(self, hidden: Tensor, layers: Sequence[PackedLayer], num_candidates: int | None = None) -> Tensor | None:
        """What `layer` gives after all of these layers or, with `num_candidates`, what `layer_first` gives in the last
        of them; None if this plan does not compute them in one call.
        """
        del hidden, layers, num_candidates
        return None

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        """Attention of each [CLS] over its keys, where the rows are keys and values at once (the absorbed last layer).

        query: (num_candidates, num_heads, hidden_size).  rows: (num_rows, hidden_size).
        Returns (num_candidates, num_heads, hidden_size): the rows, averaged with the softmax of `scale` * query . row.
        Raises NotImplementedError for texts by themselves, and where scores depend on more than these products.
        """
        raise NotImplementedError(f"a {type(self).__name__} attends to no rows that are keys and values at once")


def stacked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(n, 3, num_heads, head_dim) qkv for `attend`, with copies of shared heads."""
    shared = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    return torch.stack([query, *shared], 1)
