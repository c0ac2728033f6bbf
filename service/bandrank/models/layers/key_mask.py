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
    blind: (n, 1, len, 1) bool, the rows that see none, to which attention adds zeros, as in torch; None without a
    window.
    """

    bias: Tensor
    blind: Tensor | None = None

    @classmethod
    def of(cls, seen: Tensor, dtype: torch.dtype, window: int | None = None) -> "KeyMaskPlan":
        """The plan from (n, len) bool `seen`, False for masked keys; each text must have one that is not.

        window: the most positions between a row and its keys, or None.
        """
        keys, blind = seen[:, None, None], None
        if window is not None:
            index = torch.arange(seen.shape[1], device=seen.device)
            keys = keys & ((index[:, None] - index).abs() <= window)
            blind = ~keys.any(-1, keepdim=True)
            keys = keys | blind  # no softmax of nothing, which only some of torch's kernels define
        bias = torch.zeros(keys.shape, dtype=dtype, device=seen.device).masked_fill_(~keys, -torch.inf)
        return cls(bias, blind)

    def attend(self, qkv: Tensor) -> Tensor:
        texts = qkv.view(len(self.bias), self.bias.shape[-1], *qkv.shape[1:])
        query, key, value = texts.permute(2, 0, 3, 1, 4)  # (n, num_heads, len, head_dim)
        states = scaled_dot_product_attention(query, key, value, attn_mask=self.bias)
        if self.blind is not None:
            states = states.masked_fill(self.blind, 0.0)
        return states.transpose(1, 2).flatten(0, 1)

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        texts = rows.view(len(self.bias), -1, rows.shape[-1])
        scores = (scale * query @ texts.transpose(1, 2)).float() + self.bias[:, 0]
        return scores.softmax(-1).to(rows.dtype) @ texts
