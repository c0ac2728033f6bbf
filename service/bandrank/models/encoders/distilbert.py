"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108): BERT without token types, and with another head."""

from dataclasses import dataclass

from bandrank.models.encoders.config import EncoderConfig


@dataclass(frozen=True)
class DistilBertConfig(EncoderConfig):
    """BERT's settings, without token types."""

    num_token_types: int = 0
    kind: str = "distilbert"
