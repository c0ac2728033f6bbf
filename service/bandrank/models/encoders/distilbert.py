"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108): BERT without token types, and with another head."""

from dataclasses import dataclass

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.head import ScoreHead


@dataclass(frozen=True)
class DistilBertConfig(EncoderConfig):
    """BERT's settings, without token types."""

    num_token_types: int = 0
    kind: str = "distilbert"


def distilbert_head(config: DistilBertConfig) -> ScoreHead:
    """A layer with ReLU on the [CLS] state, and a classifier."""
    return ScoreHead(config, "relu")
