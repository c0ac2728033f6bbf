"""What a backend makes of one batch."""

from abc import ABC, abstractmethod

from torch import Tensor


class AttentionPlan(ABC):
    """All that the layers of one batch share: index tensors, masks, tile lists. Made once per batch, on one device."""

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
