"""T5's encoder (Raffel et al. 2020, arXiv 1910.10683): pre-norm blocks, no biases but a learnt one for distances."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bandrank.models.encoders.distance_bias import DistanceBiasConfig, DistanceBiasStack
from bandrank.models.layers.block import BlockOptions
from bandrank.models.layers.distance_bias import PreNormDistanceBiasBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.linear import WholeLinear
from bandrank.models.layers.norm import RMSNorm
from bandrank.models.layers.relative_bias import RelativeBias

Activation = Literal["geglu_tanh", "relu"]


@dataclass(frozen=True, kw_only=True)
class T5Config(DistanceBiasConfig):
    """Such a shape. head_size: the width of one head.  activation: that of a gated unit in T5 1.1 and mT5."""

    overflows_float16: ClassVar[bool] = True

    head_size: int
    activation: Activation
    num_token_types: int = 0
    layer_norm_eps: float = 1e-6
    kind: str = "t5"

    def __post_init__(self) -> None:
        """Any number of heads is legal."""

    @property
    def gated(self) -> bool:  # type: ignore[override]  # of the class in other families
        return self.activation != "relu"

    @property
    def head_dim(self) -> int:
        return self.head_size


def t5(config: T5Config) -> DistanceBiasStack:
    """A T5 encoder of this shape, with random weights."""
    options = BlockOptions(activation=config.activation, bias=False, norm_bias=False, linear=WholeLinear, norm=RMSNorm)
    last = config.num_layers - 1
    blocks = [PreNormDistanceBiasBlock(config, options, final=index == last) for index in range(config.num_layers)]
    embeddings = Embeddings(config, position_table=False, normed=False)
    return DistanceBiasStack(config, embeddings, blocks, RelativeBias(config.num_heads))
