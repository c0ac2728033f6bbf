"""T5 and mT5 as transformers saves them, with or without their decoders, which encoders alone do not need."""

from typing import Any

from transformers import MT5Config as SavedMT5
from transformers import T5Config as SavedT5

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.t5 import T5Activation, T5Config
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, layer_weights
from bandrank.models.hf.model import SUPPORTED, Family, Model
from bandrank.models.hf.qwen import MAX_DECODER_TOKENS
from bandrank.models.hf.settings import require_plain
from bandrank.models.layers.relative_bias import BUCKETS, FARTHEST
from bandrank.models.scorer import Scorer

PLAIN = {
    "is_decoder": False,
    "relative_attention_max_distance": FARTHEST,
    "relative_attention_num_buckets": BUCKETS,
}
ACTIVATIONS: dict[tuple[str, bool], T5Activation] = {("relu", False): "relu", ("gelu_new", True): "geglu_tanh"}
ATTENTION, FEED_FORWARD = "layer.0.SelfAttention", "layer.1.DenseReluDense"
PARTS: dict[str, str | tuple[str, ...]] = {
    "attention_norm": "layer.0.layer_norm",
    "qkv": (f"{ATTENTION}.q", f"{ATTENTION}.k", f"{ATTENTION}.v"),
    "attention_out": f"{ATTENTION}.o",
    "out_norm": "layer.1.layer_norm",
    "down": f"{FEED_FORWARD}.wo",
}
UP: dict[T5Activation, str | tuple[str, ...]] = {
    "relu": f"{FEED_FORWARD}.wi",
    "geglu_tanh": (f"{FEED_FORWARD}.wi_0", f"{FEED_FORWARD}.wi_1"),
}


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Scores are not scaled by the heads' width, so queries take up the factor. Positions are
    relative, and n_positions is no limit. Raises ValueError for unsupported settings, and KeyError for a missing table.
    """
    require_plain(settings, PLAIN, "T5")
    saved = (SavedMT5 if settings["model_type"] == "mt5" else SavedT5).from_dict(settings)
    activation = ACTIVATIONS.get((saved.dense_act_fn, saved.is_gated_act))
    if activation is None:
        found = f"{saved.feed_forward_proj} ({saved.dense_act_fn})"
        raise ValueError(f"a T5 with feed_forward_proj {found} is not supported; {SUPPORTED}")
    for name in [each for each in weights if each.endswith(f"{ATTENTION}.q.weight")]:
        weights[name] = weights[name].float() * saved.d_kv**0.5
    return T5Config(
        vocab_size=len(weights[_table(weights)]),
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
    assert isinstance(config, T5Config), "the config of another family. This is a bug."
    translated = {
        "encoder.embeddings.word.weight": weights[_table(weights)],
        "encoder.relative.table.weight": weights[f"encoder.block.0.{ATTENTION}.relative_attention_bias.weight"],
        f"encoder.layers.{config.num_layers - 1}.final_norm.weight": weights["encoder.final_layer_norm.weight"],
    }
    return translated | layer_weights(
        weights, config, LayerNames("encoder.block", PARTS | {"up": UP[config.activation]})
    )


def _table(weights: Weights) -> str:
    """The name of the encoder's embeddings, which need not be saved if the decoder shares them."""
    own = "encoder.embed_tokens.weight"
    return own if own in weights else "shared.weight"


def read_reranker(model: Model) -> Scorer:
    """Raises BadCheckpoint: no form is known."""
    raise model.refuse("a T5 that re-ranks is not supported; an embedding model has a modules.json")


T5 = Family(
    prefixes=("transformer.",),
    tokens={},
    read_config=read_config,
    encoder_weights=encoder_weights,
    head={},
    read_reranker=read_reranker,
)
