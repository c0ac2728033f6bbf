"""Layers of Llama and Gemma 3 without their causal mask: RMSNorm before each half, rotary positions, no biases, and
heads of keys and values that are each shared by several of queries (Ainslie et al. 2023, arXiv 2305.13245).
"""

from dataclasses import replace

from torch import Tensor, nn

from bandrank.models.encoders.grouped_config import GroupedConfig
from bandrank.models.layers.block import BlockOptions, PreNormBlock
from bandrank.models.layers.feed_forward import feed_forward
from bandrank.models.layers.linear import WholeLinear
from bandrank.models.layers.norm import RMSNorm
from bandrank.models.layers.packed_block import Packed, Projection, norms_of_heads, numbers_of
from bandrank.models.layers.positions import Rotary
from bandrank.models.layers.window_plans import plan_within
from bandrank_kernels.native.tensors import Int8Weights, PreNorm
from bandrank_kernels.windowed_attention import AttentionPlan, stacked


class GroupedBlock(PreNormBlock):
    """Llama's."""

    def __init__(self, config: GroupedConfig, options: BlockOptions, *, final: bool = False) -> None:
        options = replace(options, bias=False, norm_bias=False, linear=WholeLinear, norm=RMSNorm)
        super().__init__(config, options, final=final)
        self.num_kv_heads = config.num_kv_heads
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.qkv = WholeLinear(config.hidden_size, queries + 2 * keys, bias=False)
        self.attention_out = WholeLinear(queries, config.hidden_size, bias=False)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()

    def _turned_projection(self, qkv: Int8Weights, rotary: Rotary) -> Projection:
        norms = norms_of_heads((self.query_norm, self.num_heads), (self.key_norm, self.num_kv_heads))
        turned = self.num_heads + self.num_kv_heads
        return Projection(qkv, numbers_of(self.norm_before), rotary, self.head_dim, turned, norms)

    def project(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return stacked(*self._project_grouped(hidden, positions))

    def _attended(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        qkv = self._project_grouped(hidden, positions)
        return plan_within(plan, self.window).attend_grouped(*qkv).flatten(1)

    def _project_grouped(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(total, num_heads, head_dim) queries, and (total, num_kv_heads, head_dim) keys and values."""
        assert self.rotary is not None, "without rotary positions. This is a bug."
        numbers = self.num_heads, self.num_kv_heads, self.num_kv_heads
        if self._projection is not None:
            query, key, value = self._projection(hidden, positions).split_with_sizes(numbers, 1)
            return query, key, value
        rows = self.qkv(self.before_attention(hidden)).view(len(hidden), sum(numbers), self.head_dim)
        query, key, value = rows.split(numbers, 1)
        query = self.rotary.turn_heads(self.query_norm(query), positions)
        return query, self.rotary.turn_heads(self.key_norm(key), positions), value


class SandwichBlock(GroupedBlock):
    """Gemma 3's (arXiv 2503.19786, section 2): each head of queries and keys is normed, and what a half adds to its
    residual too.
    """

    def __init__(self, config: GroupedConfig, options: BlockOptions, *, final: bool = False) -> None:
        super().__init__(config, options, final=final)
        eps = config.layer_norm_eps
        self.query_norm, self.key_norm = (RMSNorm(config.head_dim, eps=eps, bias=False) for _ in range(2))
        self.update_norm, self.down_norm = (RMSNorm(config.hidden_size, eps=eps, bias=False) for _ in range(2))

    def _pre_norm(self, packed: Packed) -> PreNorm:
        norms = numbers_of(self.update_norm), numbers_of(self.down_norm)
        return replace(super()._pre_norm(packed), update_norm=norms[0], down_norm=norms[1])

    def add_and_feed_forward(self, update: Tensor, hidden: Tensor) -> Tensor:
        hidden = self.update_norm(update) + hidden
        hidden = self.down_norm(feed_forward(self.up, self.down, self.out_norm(hidden), self.activation)) + hidden
        return hidden if self.final_norm is None else self.final_norm(hidden)
