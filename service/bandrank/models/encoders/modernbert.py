"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): rotary positions, pre-norm blocks with gated units, no
biases, and mostly local layers.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import BlockOptions, PreNormBlock, UnnormedPreNormBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.positions import Rotary

GLOBAL_ROTARY, LOCAL_ROTARY = Rotary(base=160_000.0), Rotary(base=10_000.0)


@dataclass(frozen=True)
class ModernBertConfig(EncoderConfig):
    """The shape of a ModernBERT.

    windows: the window of each layer, in tokens on each side, or None; layers that it does not reach are global.
    global_rotary, local_rotary: how positions turn queries and keys in global and local layers.
    activation: the gated units' activation.
    """

    gated: ClassVar[bool] = True

    num_token_types: int = 0
    layer_norm_eps: float = 1e-5
    kind: str = "modernbert"
    windows: tuple[int | None, ...] = ()
    global_rotary: Rotary = GLOBAL_ROTARY
    local_rotary: Rotary = LOCAL_ROTARY
    activation: Literal["geglu", "swiglu"] = "geglu"


def modernbert(config: ModernBertConfig) -> Stack:
    """A ModernBERT of this shape, with random weights."""
    windows = dict(enumerate(config.windows))

    def block(index: int) -> PreNormBlock:
        window = windows.get(index)
        options = BlockOptions(
            activation=config.activation,
            bias=False,
            norm_bias=False,
            rotary=config.global_rotary if window is None else config.local_rotary,
            window=window,
        )
        kind = UnnormedPreNormBlock if index == 0 else PreNormBlock
        return kind(config, options, final=index == config.num_layers - 1)

    embeddings = Embeddings(config, position_table=False, bias=False)
    return Stack(config, embeddings, [block(index) for index in range(config.num_layers)])
