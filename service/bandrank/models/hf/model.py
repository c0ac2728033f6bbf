"""A model folder in Hugging Face's format, between the family that names its tensors and the role that it plays."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf.files import Weights, load_tokenizer

SUPPORTED = (
    "supported are BERT cross-encoders with one label (such as cross-encoder/ms-marco-MiniLM-L-6-v2), sparse "
    "cross-encoders (webis/sparse-cross-encoder-4-512, -4-4096), sentence-transformers bi-encoders on BERT (such as "
    "all-MiniLM-L6-v2), ColBERT on BERT (such as colbert-ir/colbertv2.0), and bandrank's own checkpoints"
)


@dataclass(frozen=True)
class Family:
    """How one family of encoders is saved.

    prefix: of the encoder's tensors in a model that has a head too.
    cls, sep, mask: the special tokens, in the tokenizer's spelling.
    read_config: the encoder's config from config.json and the weights, which it may change. Raises ValueError for
    settings that are not supported.
    encoder_weights: our names, from `encoder.` on, for the encoder's tensors. Raises KeyError for a missing tensor.
    pooler, classifier: the linear layers of a cross-encoder's head.
    """

    prefix: str
    cls: str
    sep: str
    mask: str
    read_config: Callable[[dict[str, Any], Weights], EncoderConfig]
    encoder_weights: Callable[[Weights, EncoderConfig], Weights]
    pooler: str
    classifier: str


@dataclass(frozen=True)
class Model:
    """What a folder holds. settings: of config.json.  weights: theirs, without the family's prefix."""

    folder: Path
    family: Family
    settings: dict[str, Any]
    weights: Weights
    encoder: EncoderConfig

    @property
    def encoder_weights(self) -> Weights:
        """The encoder's tensors by our names. Raises KeyError."""
        return self.family.encoder_weights(self.weights, self.encoder)

    def refuse(self, reason: str) -> BadCheckpoint:
        """An error that says what the model is, and what is supported."""
        return BadCheckpoint(f"{self.folder}: {reason}; {SUPPORTED}")

    def ids(self, *tokens: str) -> list[int]:
        """The ids of tokens. Raises BadCheckpoint if the tokenizer lacks one."""
        tokenizer = load_tokenizer(self.folder)
        ids = []
        for token in tokens:
            if (token_id := tokenizer.token_to_id(token)) is None:
                raise self.refuse(f"the tokenizer has no {token}")
            ids.append(token_id)
        return ids
