"""What a backend makes of one batch."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Self

from torch import Tensor


class AttentionPlan(ABC):
    """All that the layers of one batch share: index tensors, masks, tile lists. Made once per batch, on one device.

    host_tables: those of its tensors that are in host memory still, so that they can travel with the batch's other
    inputs (`bind`); they go to the device by themselves where nobody takes them along.
    """

    host_tables: Sequence[Tensor] = ()

    @property
    def signature(self) -> Hashable:
        """What its launches depend on beside its capacity, the contents of its tables, and the addresses of tensors."""
        return None

    def bind(self, tables: Sequence[Tensor]) -> Self:
        """The same plan on copies of its `host_tables`, where they are on the device, with scratch of its own."""
        assert not tables, "tables for a plan that has none in host memory. This is a bug."
        return self

    @abstractmethod
    def attend(self, qkv: Tensor) -> Tensor:
        """Attention of every row over the keys that the pattern gives it, one softmax over all of them.

        qkv: (num_rows, 3, num_heads, head_dim), any stride between rows.  Returns (num_rows, num_heads, head_dim).
        Scores are scaled by head_dim ** -0.5. A place outside the candidate is no key: it takes no part in the softmax.
        """

    @abstractmethod
    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        """Attention of each [CLS] over its keys, where the rows are keys and values at once (the absorbed last layer).

        query: (num_candidates, num_heads, hidden_size).  rows: (num_rows, hidden_size).
        Returns (num_candidates, num_heads, hidden_size): the rows, averaged with the softmax of `scale` * query . row.
        """
