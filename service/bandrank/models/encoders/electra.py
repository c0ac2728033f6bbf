"""ELECTRA's discriminator (Clark et al. 2020, arXiv 2003.10555): BERT with narrower embeddings and another head."""

from dataclasses import dataclass

from bandrank.models.encoders.config import EncoderConfig


@dataclass(frozen=True)
class ElectraConfig(EncoderConfig):
    """BERT's settings.

    embedding_size: the width of the embeddings, which are then projected to hidden_size; 0 for the same width.
    """

    kind: str = "electra"
    embedding_size: int = 0

    @property
    def word_size(self) -> int:
        return self.embedding_size or self.hidden_size
