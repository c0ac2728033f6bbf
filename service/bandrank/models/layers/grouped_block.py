"""Layers of Llama and Gemma 3 without their causal mask: RMSNorm before each half, rotary positions, no biases, and
heads of keys and values that are each shared by several of queries (Ainslie et al. 2023, arXiv 2305.13245).
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from bandrank.models.encoders.grouped_config import GroupedConfig
from bandrank.models.layers.block import BlockOptions, PreNormBlock
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.feed_forward import feed_forward
from bandrank.models.layers.linear import WholeLinear
from bandrank.models.layers.norm import RMSNorm


class GroupedBlock(PreNormBlock):
    """Llama's. To the attention, each head of keys and values is as many heads as share it."""

    def __init__(self, config: GroupedConfig, options: BlockOptions, *, final: bool = False) -> None:
        options = replace(options, bias=False, norm_bias=False, linear=WholeLinear, norm=RMSNorm)
        super().__init__(config, options, final=final)
        self.num_kv_heads = config.num_kv_heads
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.qkv = WholeLinear(config.hidden_size, queries + 2 * keys, bias=False)
        self.attention_out = WholeLinear(queries, config.hidden_size, bias=False)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()

    def prepare_for(self, execution: Execution) -> None:
        """The CPU kernels compute products and attention alone, for they know no RMSNorm."""

    def project(self, hidden: Tensor, positions: Tensor) -> Tensor:
        assert self.rotary is not None, "without rotary positions. This is a bug."
        numbers = self.num_heads, self.num_kv_heads, self.num_kv_heads
        rows = self.qkv(self.before_attention(hidden)).view(len(hidden), sum(numbers), self.head_dim)
        query, key, value = rows.split(numbers, 1)
        query = self.rotary.turn_heads(self.query_norm(query), positions)
        key = self.rotary.turn_heads(self.key_norm(key), positions)
        shared = (each.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for each in (key, value))
        return torch.stack([query, *shared], 1)  # (total, 3, num_heads, head_dim)


class SandwichBlock(GroupedBlock):
    """Gemma 3's (arXiv 2503.19786, section 2): each head of queries and keys is normed, and what a half adds to its
    residual too.
    """

    def __init__(self, config: GroupedConfig, options: BlockOptions, *, final: bool = False) -> None:
        super().__init__(config, options, final=final)
        eps = config.layer_norm_eps
        self.query_norm, self.key_norm = (RMSNorm(config.head_dim, eps=eps, bias=False) for _ in range(2))
        self.update_norm, self.down_norm = (RMSNorm(config.hidden_size, eps=eps, bias=False) for _ in range(2))

    def add_and_feed_forward(self, update: Tensor, hidden: Tensor) -> Tensor:
        hidden = self.update_norm(update) + hidden
        hidden = self.down_norm(feed_forward(self.up, self.down, self.out_norm(hidden), self.activation)) + hidden
        return hidden if self.final_norm is None else self.final_norm(hidden)
