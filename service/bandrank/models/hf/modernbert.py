"""ModernBERT as transformers saves it."""

from typing import Any, Literal

from transformers import ModernBertConfig as SavedConfig

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.modernbert import ModernBertConfig
from bandrank.models.hf import sequence_cross_encoder
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, layer_weights
from bandrank.models.hf.model import Family, head_names
from bandrank.models.hf.rotary import read_layers, read_saved
from bandrank.models.hf.settings import require_plain, sizes_of

PLAIN = {"attention_bias": False, "mlp_bias": False, "norm_bias": False}
HEAD = {"classifier_activation": "gelu"}
ACTIVATIONS: dict[str, Literal["geglu", "swiglu"]] = {"gelu": "geglu", "silu": "swiglu"}
NAMES = LayerNames(
    layer="layers",
    parts={
        "qkv": "attn.Wqkv",
        "attention_out": "attn.Wo",
        "out_norm": "mlp_norm",
        "up": "mlp.Wi",
        "down": "mlp.Wo",
    },
)


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Biases that were not saved with a head become zeros among the weights.

    Raises ValueError for unsupported settings.
    """
    saved = read_saved(SavedConfig.from_dict, settings)
    head = HEAD if "head.dense.weight" in weights else {}
    other = {} if saved.hidden_activation in ACTIVATIONS else {"hidden_activation": "gelu"}
    require_plain(settings, PLAIN | head | other, "ModernBERT")
    for name in ("head.dense", "head.norm"):
        if f"{name}.weight" in weights:
            weights.setdefault(f"{name}.bias", weights[f"{name}.weight"].new_zeros(saved.hidden_size))
    return ModernBertConfig(
        **sizes_of(vars(saved), weights["embeddings.tok_embeddings.weight"]),
        layer_norm_eps=saved.norm_eps,
        activation=ACTIVATIONS[saved.hidden_activation],
        **read_layers(saved.layer_types, saved.rope_parameters, saved.local_attention // 2),
    )


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """A ModernBERT encoder's tensors under our names. Raises the errors of `layer_weights`."""
    translated = {
        "encoder.embeddings.word.weight": weights["embeddings.tok_embeddings.weight"],
        "encoder.embeddings.norm.weight": weights["embeddings.norm.weight"],
        f"encoder.layers.{config.num_layers - 1}.final_norm.weight": weights["final_norm.weight"],
    }
    for layer in range(1, config.num_layers):  # the first has no such norm
        translated[f"encoder.layers.{layer}.attention_norm.weight"] = weights[f"layers.{layer}.attn_norm.weight"]
    return translated | layer_weights(weights, config, NAMES)


MODERNBERT = Family(
    prefixes=("model.",),
    tokens={"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    read_config=read_config,
    encoder_weights=encoder_weights,
    head=head_names(dense="head.dense", norm="head.norm", classifier="classifier"),
    mlm_head=("head.dense", "head.norm", "decoder"),
    read_reranker=sequence_cross_encoder.read,
)
