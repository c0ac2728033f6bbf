"""ELECTRA's discriminator (Clark et al. 2020, arXiv 2003.10555): BERT with narrower embeddings and another head."""

from dataclasses import dataclass

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import PostNormBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.head import ScoreHead


@dataclass(frozen=True)
class ElectraConfig(EncoderConfig):
    """BERT's settings.

    embedding_size: the width of the embeddings, which are then projected to hidden_size; 0 for the same width.
    """

    kind: str = "electra"
    embedding_size: int = 0

    @property
    def is_projected(self) -> bool:
        """Whether the embeddings have another width than the layers."""
        return self.embedding_size not in {0, self.hidden_size}


def electra(config: ElectraConfig) -> Stack:
    """BERT's blocks on projected embeddings."""
    embeddings = Embeddings(config, size=config.embedding_size if config.is_projected else None)
    return Stack(config, embeddings, [PostNormBlock(config) for _ in range(config.num_layers)])


def electra_head(config: ElectraConfig) -> ScoreHead:
    """A layer with GELU on the [CLS] state, and a classifier."""
    return ScoreHead(config, "gelu")
