"""The settings of BERTs without a position table (NomicBERT, GTE, JinaBERT), and the tensors that all BERTs share."""

from collections.abc import Mapping
from typing import Any

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, layer_weights
from bandrank.models.hf.settings import sizes_of

WORDS = "embeddings.word_embeddings.weight"
TYPES = "embeddings.token_type_embeddings.weight"


def read_shape(settings: Mapping[str, Any], weights: Weights) -> dict[str, Any]:
    """The fields of an encoder's config. Raises ValueError for missing settings."""
    return sizes_of(settings, weights[WORDS]) | {
        "num_token_types": len(weights.get(TYPES, ())),
        "layer_norm_eps": settings.get("layer_norm_eps", 1e-12),
    }


def encoder_weights(
    weights: Weights, config: EncoderConfig, names: LayerNames, norm: str = "embeddings.LayerNorm"
) -> Weights:
    """The encoder's tensors under our names, without positions. norm: the saved name of the embeddings' LayerNorm.

    Raises the errors of `layer_weights`.
    """
    translated = {"encoder.embeddings.word.weight": weights[WORDS]}
    if config.num_token_types:
        translated["encoder.embeddings.token_type.weight"] = weights[TYPES]
    for part in ("weight", "bias"):
        translated[f"encoder.embeddings.norm.{part}"] = weights[f"{norm}.{part}"]
    return translated | layer_weights(weights, config, names)
