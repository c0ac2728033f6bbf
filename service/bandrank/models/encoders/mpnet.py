"""MPNet (Song et al. 2020, arXiv 2004.09297): BERT with a learnt bias for distances, and without token types."""

from dataclasses import dataclass

from bandrank.models.encoders.distance_bias import DistanceBiasConfig, DistanceBiasStack
from bandrank.models.layers.distance_bias import DistanceBiasBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.relative_bias import RelativeBias


@dataclass(frozen=True)
class MpnetConfig(DistanceBiasConfig):
    """BERT's settings, without token types."""

    num_token_types: int = 0
    kind: str = "mpnet"


def mpnet(config: MpnetConfig) -> DistanceBiasStack:
    """BERT's blocks and a table of biases."""
    blocks = [DistanceBiasBlock(config) for _ in range(config.num_layers)]
    return DistanceBiasStack(config, Embeddings(config), blocks, RelativeBias(config.num_heads))
