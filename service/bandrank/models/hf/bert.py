"""BERT as transformers saves it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import BertConfig

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf.files import Weights
from bandrank.models.hf.model import SUPPORTED, Family, score_head
from bandrank.models.layers.positions import interpolate_positions

POSITIONS = "embeddings.position_embeddings.weight"


@dataclass(frozen=True)
class Names:
    """The saved names of a layer's tensors, which differ between families whose layers compute alike.

    layer: what precedes a layer's number.  qkv: the projections to query, key and value.  parts: the rest by our names.
    """

    layer: str
    qkv: tuple[str, str, str]
    parts: Mapping[str, str]


NAMES = Names(
    layer="encoder.layer",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    parts={
        "attention_out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "out_norm": "output.LayerNorm",
    },
)


def read_config(settings: dict[str, Any], weights: Weights, names: Names = NAMES) -> EncoderConfig:
    """The encoder's shape; a position table shorter than config.json says is interpolated to that length (Schlatt et
    al. 2024, section 3.5). Raises ValueError for settings that are not supported, or that do not fit the weights.
    """
    if (positions := settings.get("position_embedding_type", "absolute")) != "absolute":
        raise ValueError(
            f"model_type {settings.get('model_type')!r} with {positions} positions is not supported; {SUPPORTED}"
        )
    if (activation := settings.get("hidden_act", "gelu")) != "gelu":
        raise ValueError(f"activation {activation!r} is not supported, only the exact gelu; {SUPPORTED}")
    bert = BertConfig.from_dict(settings)
    if bert.max_position_embeddings > len(weights[POSITIONS]):
        weights[POSITIONS] = interpolate_positions(weights[POSITIONS], bert.max_position_embeddings)
    numbered = re.compile(re.escape(names.layer) + r"\.(\d+)\.")
    deepest = max((int(match[1]) for name in weights if (match := numbered.match(name))), default=-1)
    if deepest >= bert.num_hidden_layers:
        raise ValueError(f"config.json names {bert.num_hidden_layers} layers, the weights have {deepest + 1}")
    return EncoderConfig(
        vocab_size=len(weights["embeddings.word_embeddings.weight"]),  # as stored: added tokens grow it
        hidden_size=bert.hidden_size,
        num_layers=bert.num_hidden_layers,
        num_heads=bert.num_attention_heads,
        intermediate_size=bert.intermediate_size,
        max_positions=bert.max_position_embeddings,
        num_token_types=bert.type_vocab_size,
        layer_norm_eps=bert.layer_norm_eps,
    )


def encoder_weights(weights: Weights, config: EncoderConfig, names: Names = NAMES) -> Weights:
    """The encoder's tensors under our names; the matrices of query, key and value are stacked into one.

    Raises KeyError for a missing tensor.
    """
    tables = ("word", "position", "token_type") if config.num_token_types else ("word", "position")
    translated = {
        f"encoder.embeddings.{name}.weight": weights[f"embeddings.{name}_embeddings.weight"] for name in tables
    }
    for part in ("weight", "bias"):
        translated[f"encoder.embeddings.norm.{part}"] = weights[f"embeddings.LayerNorm.{part}"]
        for layer in range(config.num_layers):
            ours, saved = f"encoder.layers.{layer}", f"{names.layer}.{layer}"
            translated[f"{ours}.qkv.{part}"] = torch.cat([weights[f"{saved}.{name}.{part}"] for name in names.qkv])
            for name, saved_name in names.parts.items():
                translated[f"{ours}.{name}.{part}"] = weights[f"{saved}.{saved_name}.{part}"]
    return translated


BERT = Family(
    prefix="bert.",
    tokens={"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    read_config=read_config,
    encoder_weights=encoder_weights,
    head=score_head("pooler.dense", "classifier"),
)
