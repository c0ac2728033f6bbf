"""EmbeddingGemma 2 as transformers saves it: the text model, alone or among encoders of media, which are left alone."""

from dataclasses import replace
from typing import Any

import torch

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.embedding_gemma2 import EmbeddingGemma2Config
from bandrank.models.hf import gemma3, llama
from bandrank.models.hf.files import Weights
from bandrank.models.hf.model import SUPPORTED
from bandrank.models.hf.qwen import MAX_DECODER_TOKENS, read_sizes
from bandrank.models.hf.rotary import GLOBAL, read_layers
from bandrank.models.hf.settings import require_numbers, require_plain

PLAIN = {"attention_bias": False, "hidden_activation": "gelu_pytorch_tanh"}
MEDIA, WORDS = ("image_token_id", "video_token_id", "audio_token_id"), "embed_tokens.weight"
PARTS = gemma3.PARTS | {
    "gate": "ple_block.per_layer_input_gate",
    "mix": "ple_block.per_layer_projection",
    "mix_norm": "ple_block.post_per_layer_input_norm",
}


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape, with heads as in the weights. Tokens that stand for media become padding, as in texts alone.

    Raises ValueError for missing or unsupported settings.
    """
    text = settings.get("text_config") or settings
    require_numbers(text, ("sliding_window", "hidden_size_per_layer_input"))
    require_plain(text, PLAIN, "text model of EmbeddingGemma 2")
    kinds, sizes = text.get("layer_types") or [""], read_sizes(text, weights)
    layers = read_layers(kinds, text.get("rope_parameters") or {}, text["sliding_window"])
    own = {name for layer in (text.get("per_layer_config") or {}).values() for name in layer}
    if kinds[-1] != GLOBAL or own - {"head_dim", "num_key_value_heads"}:
        raise ValueError(f"layers of types {kinds} that differ in {sorted(own)} are not supported; {SUPPORTED}")
    heads = tuple(_heads(weights, f"layers.{layer}.self_attn") for layer in range(sizes["num_layers"]))
    number, width = max(heads, key=lambda each: each[1])
    if ids := [each for each in map(settings.get, MEDIA) if each is not None and each < sizes["vocab_size"]]:
        padding = weights[WORDS][[text.get("pad_token_id") or 0] * len(ids)]
        weights[WORDS] = weights[WORDS].index_copy(0, torch.tensor(ids), padding)
    longest = min(sizes["max_positions"], MAX_DECODER_TOKENS)
    return EmbeddingGemma2Config(
        **sizes | {"num_kv_heads": number, "head_size": width, "max_positions": longest},
        heads=heads,
        mixed_size=text["hidden_size_per_layer_input"],
        **layers,
    )


def _heads(weights: Weights, attention: str) -> tuple[int, int]:
    rows, width = (len(weights[f"{attention}.{name}.weight"]) for name in ("k_proj", "k_norm"))
    return rows // width, width


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The encoder's tensors under our names. Embeddings, what is projected from them, and the norms of queries, whose
    products with keys are not scaled, take up their factors. Raises the errors of `layer_weights`.
    """
    translated = llama.encoder_weights(weights, config, PARTS)
    last = f"encoder.layers.{config.num_layers - 1}"
    translated[f"{last}.end_norm.weight"] = translated.pop(f"{last}.final_norm.weight")
    translated["encoder.embeddings.word.weight"] = weights[WORDS].float() * config.hidden_size**0.5
    signals = weights["ple.per_layer_model_projection.weight"].float() * config.hidden_size**-0.5
    for layer, signal in enumerate(signals.chunk(config.num_layers)):
        query_norm = weights[f"layers.{layer}.self_attn.q_norm.weight"].float()
        own = {
            "query_norm.weight": query_norm * len(query_norm) ** 0.5,
            "signal.weight": signal,
            "signal_norm.weight": weights["ple.per_layer_projection_norm.weight"].clone(),
            "scale": weights[f"layers.{layer}.layer_scalar"],
        }
        translated |= {f"encoder.layers.{layer}.{name}": tensor for name, tensor in own.items()}
    return translated


EMBEDDING_GEMMA2 = replace(
    gemma3.GEMMA3,
    prefixes=("language_model.",),
    read_config=read_config,
    encoder_weights=encoder_weights,
    projection="embedding_projection.weight",
)
