"""Gemma as transformers saves it: Qwen's layers with a GELU; norm weights stored minus one, embeddings unscaled."""

from typing import Any

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.hf.files import Weights
from bandrank.models.hf.model import SUPPORTED, Family
from bandrank.models.hf.qwen import decoder_weights, read_shape
from bandrank.models.hf.settings import require_plain

PLAIN = {"attention_bias": False, "use_bidirectional_attention": None}
ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")  # the first releases call it "gelu", as the library knows


def read_config(settings: dict[str, Any], weights: Weights) -> DecoderConfig:
    """The decoder's shape. Raises ValueError for missing or unsupported settings."""
    require_plain(settings, PLAIN, "Gemma")
    if (activation := settings.get("hidden_act", "gelu_pytorch_tanh")) not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not supported, only {ACTIVATIONS[0]}; {SUPPORTED}")
    return DecoderConfig(**read_shape(settings, weights), activation="geglu_tanh")


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The decoder's tensors under our names, ready to compute with. Raises the errors of `layer_weights`."""
    return as_computed(decoder_weights(weights, config), config)


def as_computed(stored: Weights, config: EncoderConfig) -> Weights:
    """A Gemma's tensors with one added to norm weights and with scaled embeddings, in float32 as in the library."""
    computed = dict(stored)
    for name, tensor in stored.items():
        if name.endswith("norm.weight"):
            computed[name] = tensor.float() + 1.0
        elif name.endswith("word.weight"):
            computed[name] = tensor.float() * config.hidden_size**0.5
    return computed


GEMMA = Family(prefixes=("model.",), tokens={}, read_config=read_config, encoder_weights=encoder_weights, head={})
