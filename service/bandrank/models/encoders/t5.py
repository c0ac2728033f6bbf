"""T5's encoder (Raffel et al. 2020, arXiv 1910.10683): RMSNorm before each half, no bias but for distances."""

from dataclasses import dataclass
from typing import ClassVar

from bandrank.models.encoders.distance_bias import DistanceBiasConfig, DistanceBiasStack
from bandrank.models.layers.block import BlockOptions
from bandrank.models.layers.distance_bias import PreNormBiasBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.feed_forward import GATES, Activation
from bandrank.models.layers.linear import WholeLinear
from bandrank.models.layers.norm import RMSNorm
from bandrank.models.layers.relative_bias import RelativeBias


@dataclass(frozen=True, kw_only=True)
class T5Config(DistanceBiasConfig):
    """Such a shape. head_size: the width of a head.  activation: of a gated unit in T5 1.1 and mT5."""

    overflows_float16: ClassVar[bool] = True

    head_size: int
    activation: Activation
    num_token_types: int = 0
    layer_norm_eps: float = 1e-6
    kind: str = "t5"

    def __post_init__(self) -> None:
        """Any heads are legal."""

    @property
    def gated(self) -> bool:  # type: ignore[override]  # of the class in other families
        return self.activation in GATES

    @property
    def head_dim(self) -> int:
        return self.head_size


def t5(config: T5Config) -> DistanceBiasStack:
    """An encoder with random weights."""
    options = BlockOptions(activation=config.activation, bias=False, norm_bias=False, linear=WholeLinear, norm=RMSNorm)
    layers = range(1, config.num_layers + 1)
    blocks = [PreNormBiasBlock(config, options, final=number == config.num_layers) for number in layers]
    embeddings = Embeddings(config, position_table=False, normed=False)
    return DistanceBiasStack(config, embeddings, blocks, RelativeBias(config.num_heads))
