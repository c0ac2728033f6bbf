"""GTE as its authors' code (`model_type` new) and transformers (gte) save it, under the same names."""

from typing import Any

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.rotary_bert import GTE_ROTARY, GteConfig
from bandrank.models.hf import unplaced_bert
from bandrank.models.hf.bert import BERT
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, gates_first
from bandrank.models.hf.model import Family
from bandrank.models.hf.roberta import ROBERTA
from bandrank.models.hf.rotary import read_rotary
from bandrank.models.hf.settings import require_plain

PLAIN = {
    "hidden_act": "gelu",
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
}
NAMES = LayerNames(
    layer="encoder.layer",
    parts={
        "qkv": "attention.qkv_proj",
        "attention_out": "attention.o_proj",
        "attention_norm": "attn_ln",
        "up": "mlp.up_gate_proj",
        "down": "mlp.down_proj",
        "out_norm": "mlp_ln",
    },
)


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for missing or unsupported settings."""
    require_plain(settings, PLAIN, "GTE")
    if settings["model_type"] == "gte":  # the authors' code has another default
        settings = {"rope_theta": GTE_ROTARY.base} | settings
    shape = unplaced_bert.read_shape(settings, weights)
    return GteConfig(**shape, rotary=read_rotary(settings, shape["hidden_size"] // shape["num_heads"]))


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The encoder's tensors under our names; gates, which are saved behind the gated values, come first.

    Raises the errors of `layer_weights`.
    """
    return gates_first(unplaced_bert.encoder_weights(weights, config, NAMES))


GTE = Family(
    prefixes=("gte.", "new."),
    tokens=ROBERTA.tokens,
    read_config=read_config,
    encoder_weights=encoder_weights,
    head=BERT.head,
    mlm_head=("lm_head.dense", "lm_head.norm", "lm_head.decoder"),
    query_separators=2,
)
