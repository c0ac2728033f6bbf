"""EmbeddingGemma 2's text model: a Gemma 3 whose layers differ in their heads, norm values too, and mix in projections
of the embeddings. Between layers a row is its state and, behind it, its embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, rms_norm

from bandrank.models.encoders.gemma3 import Gemma3Config, options_of
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.grouped_block import SandwichBlock
from bandrank.models.layers.linear import WholeLinear
from bandrank.models.layers.norm import RMSNorm


@dataclass(frozen=True, kw_only=True)
class EmbeddingGemma2Config(Gemma3Config):
    """A Gemma 3's settings, with those of the layer with the widest heads, by which kernels are chosen.

    heads: the number and the width of each layer's heads of keys.  mixed_size: the width of what layers mix in.
    """

    heads: tuple[tuple[int, int], ...]
    mixed_size: int
    kind: str = "embedding_gemma2"

    @property
    def products_per_layer(self) -> int:
        return super().products_per_layer + 3 * self.hidden_size * self.mixed_size


class MixingBlock(SandwichBlock):
    """A block that adds a projection of the embedding, `signal`, gated by its own output. scale: (1,), of the sum."""

    def __init__(self, config: EmbeddingGemma2Config, index: int) -> None:
        number, width = config.heads[index]
        super().__init__(replace(config, num_kv_heads=number, head_size=width), options_of(config, index))
        size, mixed, eps = config.hidden_size, config.mixed_size, config.layer_norm_eps
        self.signal, self.gate = (WholeLinear(size, mixed, bias=False) for _ in range(2))
        self.mix = WholeLinear(mixed, size, bias=False)
        self.signal_norm, self.mix_norm, end_norm = (RMSNorm(n, eps=eps, bias=False) for n in (mixed, size, size))
        self.scale = nn.Parameter(torch.ones(1))
        self.end_norm = end_norm if index == config.num_layers - 1 else None  # final_norm would precede the mixing

    def before_attention(self, hidden: Tensor) -> Tensor:
        return super().before_attention(self._parts(hidden)[0])

    def _project_grouped(self, hidden: Tensor, positions: Tensor) -> Sequence[Tensor]:
        query, key, value = super()._project_grouped(hidden, positions)
        return query, key, rms_norm(value, value.shape[-1:], eps=self.attention_norm.eps)

    def _after_attention(self, rows: Tensor, hidden: Tensor) -> Tensor:
        state, embedding = self._parts(hidden)
        state = super()._after_attention(rows, state)
        mixed = gelu(self.gate(state), approximate="tanh") * self.signal_norm(self.signal(embedding))
        state = (state + self.mix_norm(self.mix(mixed))) * self.scale
        return torch.cat([state, embedding], -1) if self.end_norm is None else self.end_norm(state)

    def _parts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """State and embedding, which the first layer gets as one."""
        size = self.attention_out.out_features
        return hidden[:, :size], hidden[:, -size:]


def embedding_gemma2(config: EmbeddingGemma2Config) -> Stack:
    """An EmbeddingGemma 2 of this shape, with random weights."""
    blocks = [MixingBlock(config, index) for index in range(config.num_layers)]
    return Stack(config, Embeddings(config, position_table=False, normed=False), blocks)
