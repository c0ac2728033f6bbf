"""Attention of whole texts of equal length, some of whose rows nobody sees."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bandrank_kernels.windowed_attention import AttentionPlan


@dataclass(frozen=True)
class KeyMaskPlan(AttentionPlan):
    """Every row of a text attends to the text's visible rows. bias: (n, 1, 1, len) 0, or -inf for rows not seen."""

    bias: Tensor

    @classmethod
    def of(cls, seen: Tensor, dtype: torch.dtype) -> "KeyMaskPlan":
        """seen: (n, len) bool, with at least one row seen in each text."""
        bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
        return cls(bias[:, None, None])

    def attend(self, qkv: Tensor) -> Tensor:
        texts = qkv.view(len(self.bias), self.bias.shape[-1], *qkv.shape[1:])
        query, key, value = texts.permute(2, 0, 3, 1, 4)  # (n, num_heads, len, head_dim)
        return scaled_dot_product_attention(query, key, value, attn_mask=self.bias).transpose(1, 2).flatten(0, 1)

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        raise NotImplementedError("texts of equal length are scored by all their rows")
