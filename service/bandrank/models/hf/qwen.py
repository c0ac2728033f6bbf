"""Qwen2 and Qwen3 as transformers saves them."""

from typing import Any

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, layer_weights
from bandrank.models.hf.model import SUPPORTED, Family, Model
from bandrank.models.hf.rotary import read_rotary
from bandrank.models.hf.settings import require_numbers, sizes_of

# Longer texts, which these models could read, take gigabytes of memory and quadratic time.
MAX_DECODER_TOKENS = 8192
PARTS: dict[str, str | tuple[str, ...]] = {
    "attention_norm": "input_layernorm",
    "attention_out": "self_attn.o_proj",
    "out_norm": "post_attention_layernorm",
    "up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": "mlp.down_proj",
}


def read_config(settings: dict[str, Any], weights: Weights) -> DecoderConfig:
    """The decoder's shape. Raises ValueError for missing or unsupported settings."""
    qwen3 = settings["model_type"] == "qwen3"
    if (activation := settings.get("hidden_act", "silu")) != "silu":
        raise ValueError(f"activation {activation!r} is not supported, only silu; {SUPPORTED}")
    if qwen3 and settings.get("attention_bias"):
        raise ValueError(f"attention with a bias is not supported in qwen3; {SUPPORTED}")
    return DecoderConfig(**read_shape(settings, weights), qkv_bias=not qwen3, head_norms=qwen3)


def read_shape(settings: dict[str, Any], weights: Weights) -> dict[str, Any]:
    """The fields of DecoderConfig that all families have. Raises ValueError for missing or unsupported settings."""
    if not settings.get("is_causal", True):
        raise ValueError(f"a decoder whose tokens see all others (is_causal: false) is not supported; {SUPPORTED}")
    if settings.get("use_sliding_window"):
        raise ValueError(f"attention within a sliding window is not supported; {SUPPORTED}")
    sizes = read_sizes(settings, weights)
    return sizes | {"rotary": read_rotary({"rope_theta": 10_000.0} | settings, sizes["head_size"])}


def read_sizes(settings: dict[str, Any], weights: Weights) -> dict[str, Any]:
    """The fields of GroupedConfig. Raises ValueError for missing settings."""
    sizes = sizes_of(settings, weights["embed_tokens.weight"])
    require_numbers(settings, ["num_key_value_heads"])
    return sizes | {
        "num_kv_heads": settings["num_key_value_heads"],
        "head_size": settings.get("head_dim") or sizes["hidden_size"] // sizes["num_heads"],
        "layer_norm_eps": settings.get("rms_norm_eps", 1e-6),
    }


def decoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """A decoder's tensors under our names. Raises the errors of `layer_weights`."""
    assert isinstance(config, DecoderConfig), "the config of another family. This is a bug."
    translated = {"encoder.word.weight": weights["embed_tokens.weight"], "encoder.norm.weight": weights["norm.weight"]}
    parts = PARTS | {"query": "self_attn.q_proj", "key_value": ("self_attn.k_proj", "self_attn.v_proj")}
    norms = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"} if config.head_norms else {}
    return translated | layer_weights(weights, config, LayerNames("layers", parts | norms))


def require_no_code(model: Model) -> None:
    """Raises BadCheckpoint for a decoder with its own code, in which tokens may see those behind them."""
    if own := model.settings.get("auto_map"):
        code = ", ".join(sorted(map(str, dict(own).values())))
        raise model.refuse(f"a decoder that computes by code of its own ({code}), which is not run, is not supported")


QWEN = Family(prefixes=("model.",), tokens={}, read_config=read_config, encoder_weights=decoder_weights, head={})
