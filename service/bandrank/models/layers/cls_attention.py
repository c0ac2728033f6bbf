"""The projections of attention for [CLS] alone, folded at load: few rows take as long to launch as to compute."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from bandrank.models.layers.linear import LinearLayer

# In each folded matrix: 8 MB in half precision, which a GPU reads in the time of a few launches. A MiniLM's matrices
# have 1.8 million numbers, a BERT-base's 7 million.
MAX_NUMBERS = 2**22


def folds(qkv: LinearLayer, num_heads: int) -> bool:
    """Whether the folded projections of all heads are small enough to save time. qkv: three projections in one."""
    return num_heads * (qkv.out_features // 3) ** 2 <= MAX_NUMBERS


class FoldedProjections:
    """W_k^T W_q and W_o W_v of each head, between which `AttentionPlan.attend_cls` averages the rows themselves.

    The bias of keys shifts all logits of a row alike and drops out. Products are computed in float32 and rounded once.
    """

    @torch.no_grad()
    def __init__(self, qkv: LinearLayer, out: LinearLayer, num_heads: int) -> None:
        """qkv: (3 * hidden_size) outputs of hidden_size.  out: the layer behind the heads."""
        self._num_heads = num_heads
        hidden_size = out.out_features
        query_rows, key_rows, value_rows = qkv.thirds
        # (num_heads, head_dim, hidden_size) each; `out` is transposed
        query, key, value, behind = (
            weight.float().reshape(num_heads, -1, hidden_size)
            for weight in (*map(qkv.weight_rows, (query_rows, key_rows, value_rows)), out.weight_rows().T)
        )
        query_bias, value_bias = (qkv.bias_rows(rows).float() for rows in (query_rows, value_rows))
        dtype = qkv.weight_rows().dtype
        self._query = torch.einsum("hdi,hdo->hoi", query, key).flatten(0, 1).to(dtype)
        self._query_bias = torch.einsum("hd,hdo->ho", query_bias.view(num_heads, -1), key).flatten().to(dtype)
        self._out = torch.einsum("hdi,hdo->ohi", value, behind).flatten(1).to(dtype)
        self._out_bias = (out.weight_rows().float() @ value_bias + out.bias_rows().float()).to(dtype)

    def queries(self, cls: Tensor) -> Tensor:
        """(n, num_heads, hidden_size) u = W_k^T (W_q x + b_q) of each head. cls: (n, hidden_size)."""
        return linear(cls, self._query, self._query_bias).view(len(cls), self._num_heads, -1)

    def outputs(self, averaged: Tensor) -> Tensor:
        """(n, hidden_size) of the layer behind the heads. averaged: (n, num_heads, hidden_size) rows of each head."""
        return linear(averaged.flatten(1), self._out, self._out_bias)
