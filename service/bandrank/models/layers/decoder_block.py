"""A layer of Qwen2, Qwen3 or Gemma on packed rows: RMSNorm before each sublayer, grouped queries, rotary positions."""

from collections.abc import Sequence

from torch import Tensor

from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.layers.block import BlockOptions
from bandrank.models.layers.causal import CausalPlan
from bandrank.models.layers.grouped_block import GroupedBlock
from bandrank.models.layers.linear import WholeLinear
from bandrank.models.layers.norm import RMSNorm


class DecoderBlock(GroupedBlock):
    """Llama's block with a projection of its own for queries, which the last layer computes for some rows only."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config, BlockOptions(activation=config.activation, rotary=config.rotary))
        del self.qkv
        size, width, eps, bias = config.hidden_size, config.head_dim, config.layer_norm_eps, config.qkv_bias
        self.query = WholeLinear(size, config.num_heads * width, bias=bias)
        self.key_value = WholeLinear(size, 2 * config.num_kv_heads * width, bias=bias)
        if config.head_norms:
            self.query_norm, self.key_norm = (RMSNorm(width, eps=eps, bias=False) for _ in range(2))

    def forward_last(self, hidden: Tensor, positions: Tensor, plan: CausalPlan, last: Tensor) -> Tensor:
        """(n, hidden_size) output of `forward` for the last row of each continuation; other rows only get keys and
        values.

        last: (n,) int64, `Continuations.last_rows`.
        """
        rows = self.before_attention(hidden)
        attended = plan.attend_last(self._queries(rows[last], positions[last]), *self._keys_values(rows, positions))
        return self._after_attention(attended.flatten(1), hidden[last])

    def _project_grouped(self, hidden: Tensor, positions: Tensor) -> Sequence[Tensor]:
        rows = self.before_attention(hidden)
        return [self._queries(rows, positions), *self._keys_values(rows, positions)]

    def _queries(self, rows: Tensor, positions: Tensor) -> Tensor:
        return self._split(self.query, rows, positions, (self.query_norm, self.num_heads))[0]

    def _keys_values(self, rows: Tensor, positions: Tensor) -> Sequence[Tensor]:
        return self._split(self.key_value, rows, positions, (self.key_norm, self.num_kv_heads))
