"""A layer of Qwen2, Qwen3 or Gemma on packed rows: RMSNorm before each half, grouped queries, rotary positions."""

import torch
from torch import Tensor, nn

from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.layers.block import CPU_BLOCK_ROWS
from bandrank.models.layers.causal import CausalPlan
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.feed_forward import feed_forward, up_size
from bandrank.models.layers.int8_linear import Int8Linear
from bandrank.models.layers.linear import WholeLinear
from bandrank.models.layers.norm import RMSNorm
from bandrank.models.layers.packed_block import Projection, norms_of_heads, numbers_of, packed_layers
from bandrank.models.layers.positions import Rotary
from bandrank_kernels.native.tensors import Int8Weights, PreNorm


class DecoderBlock(nn.Module):
    """Attention and feed-forward with residuals that are not normed.

    In int8 the CPU kernels compute what is before the attention, and all behind it, in one call each.
    """

    _projections: tuple[Projection, Projection] | None = None
    _fused: PreNorm | None = None

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        size, width, eps, bias = config.hidden_size, config.head_dim, config.layer_norm_eps, config.qkv_bias
        self.head_dim, self.activation = width, config.activation
        self.rotary = Rotary(config.rotary_base)
        self.attention_norm = RMSNorm(size, eps=eps, bias=False)
        self.query = WholeLinear(size, config.num_heads * width, bias=bias)
        self.key_value = WholeLinear(size, 2 * config.num_kv_heads * width, bias=bias)
        self.query_norm = RMSNorm(width, eps=eps, bias=False) if config.head_norms else nn.Identity()
        self.key_norm = RMSNorm(width, eps=eps, bias=False) if config.head_norms else nn.Identity()
        self.attention_out = WholeLinear(config.num_heads * width, size, bias=False)
        self.out_norm = RMSNorm(size, eps=eps, bias=False)
        self.up = WholeLinear(size, up_size(config.intermediate_size, config.activation), bias=False)
        self.down = WholeLinear(config.intermediate_size, size, bias=False)

    def prepare_for(self, execution: Execution) -> None:
        """Decides whether the CPU kernels compute the block."""
        if (packed := packed_layers(self.attention_out, self.up, self.down, self.activation)) is not None:
            self._fused = PreNorm(*packed, numbers_of(self.out_norm))
        query, both = self.query, self.key_value
        if execution.backend == "native" and isinstance(query, Int8Linear) and isinstance(both, Int8Linear):
            of_queries = self._projection(query.packed, self.query_norm, query.out_features)
            self._projections = of_queries, self._projection(both.packed, self.key_norm, both.out_features // 2)

    def _projection(self, weights: Int8Weights, norm: nn.Module, outputs: int) -> Projection:
        """outputs: those of the heads that are turned."""
        turned, before = outputs // self.head_dim, numbers_of(self.attention_norm)
        return Projection(weights, before, self.rotary, self.head_dim, turned, norms_of_heads((norm, turned)))

    def forward(self, hidden: Tensor, positions: Tensor, plan: CausalPlan) -> Tensor:
        """(total, hidden_size) output. hidden: (total, hidden_size).  positions: (total,) int64."""
        return self._after_attention(self._attend(hidden, positions, plan), hidden)

    def forward_some(self, hidden: Tensor, positions: Tensor, plan: CausalPlan, rows: Tensor) -> Tensor:
        """(n, hidden_size) output of `forward` for some rows.

        rows: (n,) int64 indices on the device.
        """
        return self._after_attention(self._attend(hidden, positions, plan)[rows], hidden[rows])

    def forward_last(self, hidden: Tensor, positions: Tensor, plan: CausalPlan, last: Tensor) -> Tensor:
        """(n, hidden_size) output of `forward` for the last row of each continuation; of the other rows only keys and
        values are computed.

        last: (n,) int64, `Continuations.last_rows`.
        """
        rows = self._before_attention(hidden)
        queries = self._queries(rows[last], positions[last])
        return self._after_attention(plan.attend_last(queries, *self._keys_values(rows, positions)), hidden[last])

    def _attend(self, hidden: Tensor, positions: Tensor, plan: CausalPlan) -> Tensor:
        """(total, num_heads, head_dim)."""
        rows = self._before_attention(hidden)
        return plan.attend_grouped(self._queries(rows, positions), *self._keys_values(rows, positions))

    def _before_attention(self, hidden: Tensor) -> Tensor:
        """The rows that are projected, which the CPU kernels norm themselves."""
        return self.attention_norm(hidden) if self._projections is None else hidden

    def _queries(self, rows: Tensor, positions: Tensor) -> Tensor:
        """(n, num_heads, head_dim)."""
        if self._projections is not None:
            return self._projections[0](rows, positions)
        return self.rotary.turn_heads(self.query_norm(self._heads(self.query(rows))), positions)

    def _keys_values(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(n, num_kv_heads, head_dim) each."""
        if self._projections is not None:
            key, value = self._projections[1](rows, positions).chunk(2, 1)
            return key, value
        key, value = self._heads(self.key_value(rows)).chunk(2, 1)
        return self.rotary.turn_heads(self.key_norm(key), positions), value

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), rows.shape[1] // self.head_dim, self.head_dim)

    def _after_attention(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """(m, hidden_size) output. attended: (m, num_heads, head_dim).  hidden: (m, hidden_size), the block's input."""
        if self._fused is not None:
            return self._fused(attended.flatten(1), hidden)
        hidden = hidden + self.attention_out(attended.flatten(1))
        max_rows = CPU_BLOCK_ROWS if hidden.device.type == "cpu" else max(1, len(hidden))
        return torch.cat(
            [
                rows + feed_forward(self.up, self.down, self.out_norm(rows), self.activation)
                for rows in torch.split(hidden, max_rows)
            ]
        )
