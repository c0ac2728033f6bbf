"""T5 and mT5 as transformers saves them."""

from typing import Any

from torch import Tensor
from transformers import MT5Config, T5Config

from bandrank.models.encoders import t5
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, layer_weights
from bandrank.models.hf.model import SUPPORTED
from bandrank.models.hf.qwen import MAX_DECODER_TOKENS
from bandrank.models.hf.settings import require_plain
from bandrank.models.layers.feed_forward import Activation
from bandrank.models.layers.relative_bias import BUCKETS, FARTHEST

TABLE = {"relative_attention_max_distance": FARTHEST, "relative_attention_num_buckets": BUCKETS}
ACTIVATIONS: dict[tuple[str, bool], Activation] = {("relu", False): "relu", ("gelu_new", True): "geglu_tanh"}
EMBEDDINGS = "encoder.embed_tokens.weight"


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for unsupported settings."""
    require_plain(settings, TABLE | {"is_decoder": False}, "T5")
    saved = saved_config(settings)
    activation = ACTIVATIONS.get((saved.dense_act_fn, saved.is_gated_act))
    if activation is None:
        raise ValueError(f"a T5 with {saved.feed_forward_proj} ({saved.dense_act_fn}) is not supported; {SUPPORTED}")
    return t5.T5Config(
        vocab_size=len(table(weights, EMBEDDINGS)),
        hidden_size=saved.d_model,
        num_layers=saved.num_layers,
        num_heads=saved.num_heads,
        head_size=saved.d_kv,
        intermediate_size=saved.d_ff,
        max_positions=MAX_DECODER_TOKENS,
        layer_norm_eps=saved.layer_norm_epsilon,
        activation=activation,
    )


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The encoder's tensors under our names. Raises the errors of `layer_weights`."""
    translated = {
        "encoder.embeddings.word.weight": table(weights, EMBEDDINGS),
        "encoder.relative.table.weight": weights[
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ],
        f"encoder.layers.{config.num_layers - 1}.final_norm.weight": weights["encoder.final_layer_norm.weight"],
    }
    names = LayerNames("encoder.block", parts(0, "SelfAttention", gated=config.gated))
    return translated | layer_weights(with_scaled_queries(weights, config), config, names)


def table(weights: Weights, name: str) -> Tensor:
    """A table that is saved under its own name or as the one that all share. Raises KeyError if there is none."""
    return weights[next((each for each in (name, "shared.weight") if each in weights), EMBEDDINGS)]


def with_scaled_queries(weights: Weights, config: EncoderConfig) -> Weights:
    """The weights for attention that divides by the root of the heads' width, which T5's does not."""
    queries = (name for name in weights if name.endswith("Attention.q.weight"))
    return weights | {name: weights[name].float() * config.head_dim**0.5 for name in queries}


def saved_config(settings: dict[str, Any]) -> T5Config | MT5Config:
    """The library's config, with its defaults. Raises its errors."""
    return (MT5Config if settings["model_type"] == "mt5" else T5Config).from_dict(settings)


def parts(layer: int, attention: str, *, gated: bool) -> dict[str, str | tuple[str, ...]]:
    """The saved names of a block's parts by ours: `attention` in one of its layers, the feed-forward in the next."""
    attention, dense = f"layer.{layer}.{attention}", f"layer.{layer + 1}.DenseReluDense"
    return {
        "attention_norm": f"layer.{layer}.layer_norm",
        "qkv": tuple(f"{attention}.{each}" for each in "qkv"),
        "attention_out": f"{attention}.o",
        "out_norm": f"layer.{layer + 1}.layer_norm",
        "up": (f"{dense}.wi_0", f"{dense}.wi_1") if gated else f"{dense}.wi",
        "down": f"{dense}.wo",
    }
