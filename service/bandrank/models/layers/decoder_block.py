"""A layer of Qwen2 and Qwen3 on packed rows: RMSNorm before each half, grouped queries, rotary positions, SwiGLU."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.layers.block import CPU_BLOCK_ROWS
from bandrank.models.layers.causal import CausalPlan
from bandrank.models.layers.positions import Rotary


class DecoderBlock(nn.Module):
    """Attention and feed-forward with residuals that are not normed.

    Its matrices are plain ones: laid out for oneDNN, which `Linear` does beside the original, billions of weights would
    take twice the memory, for what is a hundredth of the time of a batch.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        size, width, eps = config.hidden_size, config.head_dim, config.layer_norm_eps
        self.head_dim, self.num_heads, self.num_kv_heads = width, config.num_heads, config.num_kv_heads
        self.rotary = Rotary(config.rotary_base)
        self.attention_norm = nn.RMSNorm(size, eps=eps)
        self.qkv = nn.Linear(size, (self.num_heads + 2 * self.num_kv_heads) * width, bias=config.qkv_bias)
        self.query_norm = nn.RMSNorm(width, eps=eps) if config.head_norms else nn.Identity()
        self.key_norm = nn.RMSNorm(width, eps=eps) if config.head_norms else nn.Identity()
        self.attention_out = nn.Linear(self.num_heads * width, size, bias=False)
        self.out_norm = nn.RMSNorm(size, eps=eps)
        self.up = nn.Linear(size, 2 * config.intermediate_size, bias=False)  # first the gate, then the gated values
        self.down = nn.Linear(config.intermediate_size, size, bias=False)

    def forward(self, hidden: Tensor, positions: Tensor, plan: CausalPlan) -> Tensor:
        """(total, hidden_size) output. hidden: (total, hidden_size).  positions: (total,) int64."""
        sizes = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        heads = self.qkv(self.attention_norm(hidden)).view(len(hidden), sum(sizes), self.head_dim)
        query, key, value = torch.split(heads, sizes, 1)
        turned = torch.cat([self.query_norm(query), self.key_norm(key)], 1)
        attended = plan.attend(torch.cat([self.rotary.turn_heads(turned, positions), value], 1))
        return self._after_attention(attended, hidden)

    def forward_last(self, hidden: Tensor, positions: Tensor, plan: CausalPlan, last: Tensor) -> Tensor:
        """(n, hidden_size) output of `forward` for the last row of each continuation; of the other rows only keys and
        values are computed.

        last: (n,) int64, `Continuations.last_rows`.
        """
        rows, bias = self.attention_norm(hidden), self.qkv.bias
        size = self.num_heads * self.head_dim
        query, key_value = (
            linear(each, self.qkv.weight[part], None if bias is None else bias[part]).view(len(each), -1, self.head_dim)
            for each, part in ((rows[last], slice(None, size)), (rows, slice(size, None)))
        )
        key, value = key_value.chunk(2, 1)
        query = self.rotary.turn_heads(self.query_norm(query), positions[last])
        key = self.rotary.turn_heads(self.key_norm(key), positions)
        return self._after_attention(plan.attend_last(query, key, value), hidden[last])

    def _after_attention(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """(m, hidden_size) output. attended: (m, num_heads, head_dim).  hidden: (m, hidden_size), the block's input."""
        hidden = hidden + self.attention_out(attended.flatten(1))
        most_rows = CPU_BLOCK_ROWS if hidden.device.type == "cpu" else max(1, len(hidden))
        return torch.cat([rows + self._feed_forward(self.out_norm(rows)) for rows in torch.split(hidden, most_rows)])

    def _feed_forward(self, rows: Tensor) -> Tensor:
        gate, gated = self.up(rows).chunk(2, -1)
        return self.down(silu(gate) * gated)  # type: ignore[no-any-return]
