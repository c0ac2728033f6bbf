"""MPNet as transformers saves it."""

from typing import Any

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.mpnet import MpnetConfig
from bandrank.models.hf import bert
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames
from bandrank.models.hf.model import SUPPORTED, Family
from bandrank.models.hf.roberta import ROBERTA
from bandrank.models.layers.relative_bias import BUCKETS

FIRST_POSITION = 2  # whatever the padding's id is
NAMES = LayerNames(
    layer=bert.NAMES.layer,
    parts=dict(bert.NAMES.parts)
    | {
        "qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        "attention_out": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
)


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for unsupported settings."""
    if (count := settings.get("relative_attention_num_buckets", BUCKETS)) != BUCKETS:
        raise ValueError(f"{count} buckets of distances are not supported, only {BUCKETS}; {SUPPORTED}")
    weights[bert.POSITIONS] = weights[bert.POSITIONS][FIRST_POSITION:]
    fitting = {"max_position_embeddings": len(weights[bert.POSITIONS]), "type_vocab_size": 0}
    return MpnetConfig(**bert.read_shape(settings | fitting, weights))


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The encoder's tensors under our names. Raises KeyError for a missing tensor."""
    table = {"encoder.relative.table.weight": weights["encoder.relative_attention_bias.weight"]}
    return bert.encoder_weights(weights, config, NAMES) | table


MPNET = Family(
    prefixes=("mpnet.",),
    tokens=ROBERTA.tokens,
    read_config=read_config,
    encoder_weights=encoder_weights,
    head=ROBERTA.head,
    mlm_head=ROBERTA.mlm_head,
    query_separators=2,
)
