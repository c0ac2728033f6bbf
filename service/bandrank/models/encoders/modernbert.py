"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): rotary positions, pre-norm blocks with GeGLU, no biases, and
mostly local layers.
"""

from dataclasses import dataclass
from typing import ClassVar

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import BlockOptions, PreNormBlock, UnnormedPreNormBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.positions import Rotary


@dataclass(frozen=True)
class ModernBertConfig(EncoderConfig):
    """The shape of a ModernBERT.

    global_every: the first of every run of so many layers is global, the others are local.  window: the window of local
    layers, in tokens on each side.  global_theta, local_theta: the bases of rotary positions in global and local
    layers.
    """

    gated: ClassVar[bool] = True

    num_token_types: int = 0
    layer_norm_eps: float = 1e-5
    kind: str = "modernbert"
    global_every: int = 3
    window: int = 64
    global_theta: float = 160_000.0
    local_theta: float = 10_000.0


def modernbert(config: ModernBertConfig) -> Stack:
    """A ModernBERT of this shape, with random weights."""

    def block(index: int) -> PreNormBlock:
        local = index % config.global_every != 0
        options = BlockOptions(
            activation="geglu",
            bias=False,
            norm_bias=False,
            rotary=Rotary(config.local_theta if local else config.global_theta),
            window=config.window if local else None,
        )
        kind = UnnormedPreNormBlock if index == 0 else PreNormBlock
        return kind(config, options, final=index == config.num_layers - 1)

    embeddings = Embeddings(config, position_table=False, bias=False)
    return Stack(config, embeddings, [block(index) for index in range(config.num_layers)])
