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

T5Activation = Literal["geglu_tanh", "relu"]


@dataclass(frozen=True, kw_only=True)
class T5Config(DistanceBiasConfig):
    """The shape of such an encoder, whose queries are multiplied beforehand by what scores are divided by.

    head_size: the width of one head, which need not divide hidden_size.  activation: T5's, or that of the gated units
    of T5 1.1 and mT5 (Shazeer 2020).
    """

    overflows_float16: ClassVar[bool] = True

    head_size: int
    activation: T5Activation
    num_token_types: int = 0
    layer_norm_eps: float = 1e-6
    kind: str = "t5"

    def __post_init__(self) -> None:
        """Nothing: heads of any number and width are legal."""

    @property
    def head_dim(self) -> int:
        return self.head_size

    @property
    def products_per_layer(self) -> int:
        matrices = 2 if self.activation == "relu" else 3
        return self.hidden_size * (4 * self.num_heads * self.head_size + matrices * self.intermediate_size)


def t5(config: T5Config) -> DistanceBiasStack:
    """A T5 encoder of this shape, with random weights."""
    options = BlockOptions(activation=config.activation, bias=False, norm_bias=False, linear=WholeLinear, norm=RMSNorm)
    last = config.num_layers - 1
    blocks = [PreNormDistanceBiasBlock(config, options, final=index == last) for index in range(config.num_layers)]
    embeddings = Embeddings(config, position_table=False, normed=False)
    return DistanceBiasStack(config, embeddings, blocks, RelativeBias(config.num_heads))
