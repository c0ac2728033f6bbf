"""Static embeddings as sentence-transformers and Model2Vec save them: a table of vectors and a tokenizer.json, which is
read as it is, without its special tokens. Unlike Model2Vec, and like sentence-transformers, we count unknown tokens.
"""

from typing import Any

from bandrank.models.checkpoint import read_object
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.static import StaticConfig
from bandrank.models.hf.files import Weights
from bandrank.models.hf.limits import most_tokens
from bandrank.models.hf.model import Family, Model

MODULE = "StaticEmbedding"
TABLE = "embedding.weight"


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The table's shape. Of Model2Vec's table, which tokens may share rows of, makes one with a row for each token.

    Raises KeyError for a missing tensor.
    """
    del settings
    if "embeddings" in weights:
        table = weights["embeddings"]
        if "mapping" in weights:
            table = table[weights["mapping"].long()]
        if "weights" in weights:
            table = table.float() * weights["weights"].float()[:, None]
        weights[TABLE] = table if table.is_floating_point() else table.float()
    return StaticConfig(*weights[TABLE].shape)


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The table under our name."""
    del config
    return {"encoder.embeddings.word.weight": weights[TABLE]}


def read_limits(model: Model) -> dict[str, Any]:
    """What a bi-encoder reads of a text, as fields of its config. Raises BadCheckpoint."""
    most = most_tokens(model, model.encoder.max_positions, by_tokenizer=False)
    truncation = read_object(model.folder / "tokenizer.json").get("truncation") or {}
    return {"cls_id": None, "sep_id": None, "max_tokens": min(truncation.get("max_length", most), most)}


STATIC = Family(prefixes=(), tokens={}, read_config=read_config, encoder_weights=encoder_weights, head={})
