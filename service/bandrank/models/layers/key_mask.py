"""Attention in texts of equal length, some of whose rows are masked as keys."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bandrank_kernels.windowed_attention import AttentionPlan


@dataclass(frozen=True)
class KeyMaskPlan(AttentionPlan):
    """Every row of a text attends to the text's rows that are not masked.

    bias: (n, 1 or num_heads, 1 or len, len), added to scores; -inf for rows that are masked or outside the window.
    """

    bias: Tensor

    @classmethod
    def of(cls, seen: Tensor, dtype: torch.dtype, window: int | None = None) -> "KeyMaskPlan":
        """The plan from (n, len) bool `seen`, False for masked keys; each row must see a key.

        window: the most positions between a row and its keys, or None.
        """
        keys = seen[:, None, None]
        if window is not None:
            index = torch.arange(seen.shape[1], device=seen.device)
            keys = keys & ((index[:, None] - index).abs() <= window)
        bias = torch.zeros(keys.shape, dtype=dtype, device=seen.device).masked_fill_(~keys, -torch.inf)
        return cls(bias)

    def attend(self, qkv: Tensor) -> Tensor:
        texts = qkv.view(len(self.bias), self.bias.shape[-1], *qkv.shape[1:])
        query, key, value = texts.permute(2, 0, 3, 1, 4)  # (n, num_heads, len, head_dim)
        return scaled_dot_product_attention(query, key, value, attn_mask=self.bias).transpose(1, 2).flatten(0, 1)

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        texts = rows.view(len(self.bias), -1, rows.shape[-1])
        scores = (scale * query @ texts.transpose(1, 2)).float() + self.bias[:, 0]
        return scores.softmax(-1).to(rows.dtype) @ texts
