"""DistilBERT as transformers saves it: BERT with other names."""

from functools import partial
from typing import Any

from bandrank.models.encoders.bert import DistilBertConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf import bert
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames
from bandrank.models.hf.model import Family, head_names

SETTINGS = {  # of config.json, by BERT's names
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
NAMES = LayerNames(
    layer="transformer.layer",
    parts={
        "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention_out": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "up": "ffn.lin1",
        "down": "ffn.lin2",
        "out_norm": "output_layer_norm",
    },
)


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for unsupported settings."""
    saved = {name: settings[theirs] for name, theirs in SETTINGS.items() if theirs in settings}
    fixed = {"type_vocab_size": 0, "layer_norm_eps": 1e-12}  # whatever config.json says
    return DistilBertConfig(**bert.read_shape(settings | saved | fixed, weights))


DISTILBERT = Family(
    prefixes=("distilbert.",),
    tokens=bert.BERT.tokens,
    read_config=read_config,
    encoder_weights=partial(bert.encoder_weights, names=NAMES),
    head=head_names(pooler="pre_classifier", classifier="classifier"),
    mlm_head=("vocab_transform", "vocab_layer_norm", "vocab_projector"),
)
