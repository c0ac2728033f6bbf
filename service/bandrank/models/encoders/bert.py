"""BERT (Devlin et al. 2019), and encoders that differ from it little, besides another head."""

from dataclasses import dataclass

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import PostNormBlock
from bandrank.models.layers.embeddings import Embeddings


@dataclass(frozen=True)
class DistilBertConfig(EncoderConfig):
    """DistilBERT (Sanh et al. 2019, arXiv 1910.01108): BERT's settings, without token types."""

    num_token_types: int = 0
    kind: str = "distilbert"


@dataclass(frozen=True)
class ElectraConfig(EncoderConfig):
    """ELECTRA's discriminator (Clark et al. 2020, arXiv 2003.10555): BERT's settings.

    embedding_size: the width of the embeddings, which are then projected to hidden_size; 0 for the same width.
    """

    kind: str = "electra"
    embedding_size: int = 0

    @property
    def word_size(self) -> int:
        return self.embedding_size or self.hidden_size


def bert(config: EncoderConfig) -> Stack:
    """A position table, post-norm blocks, GELU."""
    return Stack(config, Embeddings(config), [PostNormBlock(config) for _ in range(config.num_layers)])
