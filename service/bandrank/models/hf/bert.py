"""BERT as transformers saves it."""

from typing import Any

from transformers import BertConfig

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf import unplaced_bert
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames
from bandrank.models.hf.model import SUPPORTED, Family, head_names
from bandrank.models.hf.settings import sizes_of
from bandrank.models.layers.interpolation import interpolate_positions

POSITIONS = "embeddings.position_embeddings.weight"
NAMES = LayerNames(
    layer="encoder.layer",
    parts={
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention_out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "out_norm": "output.LayerNorm",
    },
)


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises the errors of `read_shape`."""
    return EncoderConfig(**read_shape(settings, weights))


def read_shape(settings: dict[str, Any], weights: Weights) -> dict[str, Any]:
    """The fields of EncoderConfig. If the position table is shorter than config.json says, it is interpolated to that
    length (Schlatt et al. 2024, section 3.5). Raises ValueError for unsupported settings.
    """
    if (positions := settings.get("position_embedding_type", "absolute")) != "absolute":
        raise ValueError(
            f"model_type {settings.get('model_type')!r} with {positions} positions is not supported; {SUPPORTED}"
        )
    if settings.get("is_decoder"):
        raise ValueError(f"an encoder whose tokens see none behind them (is_decoder) is not supported; {SUPPORTED}")
    if (activation := settings.get("hidden_act", "gelu")) != "gelu":
        raise ValueError(f"activation {activation!r} is not supported, only the exact gelu; {SUPPORTED}")
    bert = BertConfig.from_dict(settings)
    if bert.max_position_embeddings > len(weights[POSITIONS]):
        weights[POSITIONS] = interpolate_positions(weights[POSITIONS], bert.max_position_embeddings)
    return sizes_of(vars(bert), weights[unplaced_bert.WORDS]) | {
        "num_token_types": bert.type_vocab_size,
        "layer_norm_eps": bert.layer_norm_eps,
    }


def encoder_weights(weights: Weights, config: EncoderConfig, names: LayerNames = NAMES) -> Weights:
    """The encoder's tensors under our names. Raises the errors of `layer_weights`."""
    positions = {"encoder.embeddings.position.weight": weights[POSITIONS]}
    return positions | unplaced_bert.encoder_weights(weights, config, names)


BERT = Family(
    prefixes=("bert.",),
    tokens={"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    read_config=read_config,
    encoder_weights=encoder_weights,
    head=head_names(pooler="pooler.dense", classifier="classifier"),
    mlm_head=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder"),
)
