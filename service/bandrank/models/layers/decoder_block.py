"""A layer of Qwen2, Qwen3 or Gemma on packed rows: RMSNorm before each half, grouped queries, rotary positions."""

import torch
from torch import Tensor, nn

from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.layers.block import CPU_BLOCK_ROWS
from bandrank.models.layers.causal import CausalPlan
from bandrank.models.layers.feed_forward import feed_forward, up_size
from bandrank.models.layers.linear import WholeLinear
from bandrank.models.layers.positions import Rotary


class DecoderBlock(nn.Module):
    """Attention and feed-forward with residuals that are not normed."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        size, width, eps, bias = config.hidden_size, config.head_dim, config.layer_norm_eps, config.qkv_bias
        self.head_dim, self.activation = width, config.activation
        self.rotary = Rotary(config.rotary_base)
        self.attention_norm = nn.RMSNorm(size, eps=eps)
        self.query = WholeLinear(size, config.num_heads * width, bias=bias)
        self.key_value = WholeLinear(size, 2 * config.num_kv_heads * width, bias=bias)
        self.query_norm = nn.RMSNorm(width, eps=eps) if config.head_norms else nn.Identity()
        self.key_norm = nn.RMSNorm(width, eps=eps) if config.head_norms else nn.Identity()
        self.attention_out = WholeLinear(config.num_heads * width, size, bias=False)
        self.out_norm = nn.RMSNorm(size, eps=eps)
        self.up = WholeLinear(size, up_size(config.intermediate_size, config.activation), bias=False)
        self.down = WholeLinear(config.intermediate_size, size, bias=False)

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
        rows = self.attention_norm(hidden)
        queries = self._queries(rows[last], positions[last])
        return self._after_attention(plan.attend_last(queries, *self._keys_values(rows, positions)), hidden[last])

    def _attend(self, hidden: Tensor, positions: Tensor, plan: CausalPlan) -> Tensor:
        """(total, num_heads, head_dim)."""
        rows = self.attention_norm(hidden)
        return plan.attend_grouped(self._queries(rows, positions), *self._keys_values(rows, positions))

    def _queries(self, rows: Tensor, positions: Tensor) -> Tensor:
        """(n, num_heads, head_dim)."""
        return self.rotary.turn_heads(self.query_norm(self._heads(self.query(rows))), positions)

    def _keys_values(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(n, num_kv_heads, head_dim) each."""
        key, value = self._heads(self.key_value(rows)).chunk(2, 1)
        return self.rotary.turn_heads(self.key_norm(key), positions), value

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), rows.shape[1] // self.head_dim, self.head_dim)

    def _after_attention(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """(m, hidden_size) output. attended: (m, num_heads, head_dim).  hidden: (m, hidden_size), the block's input."""
        hidden = hidden + self.attention_out(attended.flatten(1))
        max_rows = CPU_BLOCK_ROWS if hidden.device.type == "cpu" else max(1, len(hidden))
        return torch.cat(
            [
                rows + feed_forward(self.up, self.down, self.out_norm(rows), self.activation)
                for rows in torch.split(hidden, max_rows)
            ]
        )
