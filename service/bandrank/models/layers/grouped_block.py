"""Layers of Llama and Gemma 3 without their causal mask: RMSNorm before each sublayer, rotary positions, no biases, and
heads of keys and values that several heads of queries share (Ainslie et al. 2023, arXiv 2305.13245).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from bandrank.models.encoders.grouped_config import GroupedConfig
from bandrank.models.layers.block import BlockOptions, PreNormBlock
from bandrank.models.layers.linear import LinearLayer, WholeLinear
from bandrank.models.layers.norm import RMSNorm
from bandrank.models.layers.positions import CPU_BLOCK_ROWS
from bandrank.models.layers.window_plans import plan_within
from bandrank_kernels.windowed_attention import AttentionPlan
from bandrank_kernels.windowed_attention.plan import stacked


class GroupedBlock(PreNormBlock):
    """Llama's block."""

    def __init__(self, config: GroupedConfig, options: BlockOptions, *, final: bool = False) -> None:
        options = replace(options, bias=False, norm_bias=False, linear=WholeLinear, norm=RMSNorm)
        super().__init__(config, options, final=final)
        self.num_kv_heads = config.num_kv_heads
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.qkv = WholeLinear(config.hidden_size, queries + 2 * keys, bias=False)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()

    def before_attention(self, hidden: Tensor) -> Tensor:
        return hidden if self._native else super().before_attention(hidden)  # the CPU kernels norm rows themselves

    def project(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return stacked(*self._project_grouped(hidden, positions))

    def _attended(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        qkv = self._project_grouped(hidden, positions)
        return plan_within(plan, self.window).attend_grouped(*qkv).flatten(1)

    def _project_grouped(self, hidden: Tensor, positions: Tensor) -> Sequence[Tensor]:
        """(total, num_heads, head_dim) queries, and (total, num_kv_heads, head_dim) keys and values."""
        norms = (self.query_norm, self.num_heads), (self.key_norm, self.num_kv_heads)
        return self._split(self.qkv, self.before_attention(hidden), positions, *norms)

    def _split(
        self, layer: LinearLayer, rows: Tensor, positions: Tensor, *norms: tuple[nn.Module, int]
    ) -> Sequence[Tensor]:
        """(n, heads, head_dim) outputs of a layer for rows from `before_attention`: the heads of each norm, normed and
        turned, and then the others. norms: each with its number of heads.
        """
        assert self.rotary is not None, "without rotary positions. This is a bug."
        numbers, count = [number for _, number in norms], layer.out_features // self.head_dim
        sizes = [*numbers, count - sum(numbers)]
        weights = [norm.weight.expand(number, -1) for norm, number in norms if isinstance(norm, RMSNorm)]
        of_heads = torch.cat(weights) if weights and self._native else None
        if (heads := self._heads(layer, rows, positions, sum(numbers), of_heads)) is not None:
            return heads.split_with_sizes(sizes, 1)
        *turned, others = layer(rows).view(len(rows), count, self.head_dim).split_with_sizes(sizes, 1)
        return [*(self._turned(norm, each, positions) for (norm, _), each in zip(norms, turned, strict=True)), others]

    def _turned(self, norm: nn.Module, heads: Tensor, positions: Tensor) -> Tensor:
        """Heads, normed and turned: on a CPU, unless gradients are recorded, in place."""
        assert self.rotary is not None, "without rotary positions. This is a bug."
        if heads.device.type != "cpu" or torch.is_grad_enabled():
            return self.rotary.turn_heads(norm(heads), positions)
        for start in range(0, len(heads), CPU_BLOCK_ROWS):
            block = slice(start, start + CPU_BLOCK_ROWS)
            heads[block] = self.rotary.turn_heads(norm(heads[block]), positions[block])
        return heads


class SandwichBlock(GroupedBlock):
    """Gemma 3's block (arXiv 2503.19786, section 2), which also norms each head of queries and keys, and the output of
    each sublayer before the residual is added.
    """

    def __init__(self, config: GroupedConfig, options: BlockOptions, *, final: bool = False) -> None:
        super().__init__(config, options, final=final)
        eps = config.layer_norm_eps
        self.query_norm, self.key_norm = (RMSNorm(config.head_dim, eps=eps, bias=False) for _ in range(2))
        self.update_norm, self.down_norm = (RMSNorm(config.hidden_size, eps=eps, bias=False) for _ in range(2))
