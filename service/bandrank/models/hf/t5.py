"""T5 and mT5 as transformers saves them."""

from typing import Any

from transformers import MT5Config, T5Config

from bandrank.models.encoders import t5
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, layer_weights
from bandrank.models.hf.model import SUPPORTED, Family
from bandrank.models.hf.qwen import MAX_DECODER_TOKENS
from bandrank.models.hf.settings import require_plain
from bandrank.models.layers.feed_forward import Activation
from bandrank.models.layers.relative_bias import BUCKETS, FARTHEST

TABLE = {"relative_attention_max_distance": FARTHEST, "relative_attention_num_buckets": BUCKETS}
ACTIVATIONS: dict[tuple[str, bool], Activation] = {("relu", False): "relu", ("gelu_new", True): "geglu_tanh"}
EMBEDDINGS = "encoder.embed_tokens.weight"
ATTENTION, DENSE = "layer.0.SelfAttention", "layer.1.DenseReluDense"
PARTS: dict[str, str | tuple[str, ...]] = {
    "attention_norm": "layer.0.layer_norm",
    "qkv": tuple(f"{ATTENTION}.{each}" for each in "qkv"),
    "attention_out": f"{ATTENTION}.o",
    "out_norm": "layer.1.layer_norm",
    "up": f"{DENSE}.wi",
    "down": f"{DENSE}.wo",
}
GATED = {"up": (f"{DENSE}.wi_0", f"{DENSE}.wi_1")}


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. T5 does not divide scores by the root of the heads' width; queries are multiplied by it.

    Raises ValueError for unsupported settings.
    """
    require_plain(settings, TABLE | {"is_decoder": False}, "T5")
    saved = (MT5Config if settings["model_type"] == "mt5" else T5Config).from_dict(settings)
    activation = ACTIVATIONS.get((saved.dense_act_fn, saved.is_gated_act))
    if activation is None:
        raise ValueError(f"a T5 with {saved.feed_forward_proj} ({saved.dense_act_fn}) is not supported; {SUPPORTED}")
    if EMBEDDINGS not in weights:
        weights[EMBEDDINGS] = weights["shared.weight"]
    for name in [each for each in weights if each.endswith(f"{ATTENTION}.q.weight")]:
        weights[name] = weights[name].float() * saved.d_kv**0.5
    return t5.T5Config(
        vocab_size=len(weights[EMBEDDINGS]),
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
        "encoder.embeddings.word.weight": weights[EMBEDDINGS],
        "encoder.relative.table.weight": weights[f"encoder.block.0.{ATTENTION}.relative_attention_bias.weight"],
        f"encoder.layers.{config.num_layers - 1}.final_norm.weight": weights["encoder.final_layer_norm.weight"],
    }
    parts = PARTS | GATED if config.gated else PARTS
    return translated | layer_weights(weights, config, LayerNames("encoder.block", parts))


T5 = Family(prefixes=("transformer.",), tokens={}, read_config=read_config, encoder_weights=encoder_weights, head={})
