"""NomicBERT as its authors' code and transformers save it, with the same tensors and differently named settings."""

from functools import partial
from typing import Any

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.rotary_bert import NOMIC_ROTARY, NomicBertConfig
from bandrank.models.hf import unplaced_bert
from bandrank.models.hf.bert import BERT
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames
from bandrank.models.hf.model import Family
from bandrank.models.hf.rotary import read_rotary
from bandrank.models.hf.settings import require_plain

SETTINGS = {  # of the authors' code, by the names of transformers
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
PLAIN = {
    "hidden_act": "silu",
    "activation_function": "swiglu",
    "prenorm": False,
    "parallel_block": False,
    "causal": False,
    "use_rms_norm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
}
NAMES = LayerNames(
    layer="encoder.layers",
    parts={
        "qkv": "attn.Wqkv",
        "attention_out": "attn.out_proj",
        "attention_norm": "norm1",
        "up": ("mlp.fc12", "mlp.fc11"),
        "down": "mlp.fc2",
        "out_norm": "norm2",
    },
)


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for missing or unsupported settings.

    With a scaling factor, the rotary positions of texts longer than those of the training depend on the text's length.
    This is not computed here: the encoder then reads as many tokens as in training.
    """
    require_plain(settings, PLAIN, "NomicBERT")
    translated = {name: settings[theirs] for name, theirs in SETTINGS.items() if theirs in settings}
    settings = {"rope_theta": NOMIC_ROTARY.base} | settings | translated
    if settings.get("rotary_scaling_factor") is not None:
        settings["max_position_embeddings"] = settings.get("max_trained_positions", 2048)
    shape = unplaced_bert.read_shape(settings, weights)
    return NomicBertConfig(**shape, rotary=read_rotary(settings, shape["hidden_size"] // shape["num_heads"]))


NOMIC_BERT = Family(
    prefixes=("nomic_bert.", "bert."),
    tokens=BERT.tokens,
    read_config=read_config,
    encoder_weights=partial(unplaced_bert.encoder_weights, names=NAMES, norm="emb_ln"),
    head=BERT.head,
)
