"""Gemma 3 without its causal mask as transformers saves it (`model_type` gemma3_text), such as EmbeddingGemma; norm
weights are stored minus one, embeddings unscaled.
"""

from typing import Any

import torch
from transformers import Gemma3TextConfig

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.gemma3 import Gemma3Config
from bandrank.models.hf import llama
from bandrank.models.hf.files import Weights
from bandrank.models.hf.gemma import as_computed
from bandrank.models.hf.model import SUPPORTED, Family
from bandrank.models.hf.qwen import read_sizes
from bandrank.models.hf.rotary import read_layers, read_saved
from bandrank.models.hf.settings import require_numbers, require_plain

REQUIRED = ("head_dim", "query_pre_attn_scalar", "sliding_window")
# With `is_causal` false too, the library's windows are one token wider on each side.
PLAIN = {
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "is_causal": True,
}
PARTS = llama.PARTS | {
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "update_norm": "post_attention_layernorm",
    "out_norm": "pre_feedforward_layernorm",
    "down_norm": "post_feedforward_layernorm",
}


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. If attention is not scaled by the heads' width, the norms of queries take up the factor. The
    tokenizer's token of an image, for which the table of embeddings has no row, becomes padding.

    Raises ValueError for missing or unsupported settings.
    """
    if settings.get("use_bidirectional_attention") is not True:
        raise ValueError(
            "a Gemma 3 whose tokens see none behind them (use_bidirectional_attention is not true) is not supported; "
            f"{SUPPORTED}"
        )
    require_numbers(settings, REQUIRED)
    require_plain(settings, PLAIN, "Gemma 3")
    table = weights["embed_tokens.weight"]
    weights["embed_tokens.weight"] = torch.cat([table, table[[settings.get("pad_token_id") or 0]]])
    sizes, saved = read_sizes(settings, weights), read_saved(Gemma3TextConfig.from_dict, settings)
    if (scale := (sizes["head_size"] / settings["query_pre_attn_scalar"]) ** 0.5) != 1.0:
        for name in [each for each in weights if each.endswith("self_attn.q_norm.weight")]:
            weights[name] = (weights[name].float() + 1.0) * scale - 1.0
    window = settings["sliding_window"] // 2  # which counts both sides
    return Gemma3Config(**sizes, **read_layers(saved.layer_types, saved.rope_parameters, window))


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The encoder's tensors under our names, with one added to norm weights and with scaled embeddings.

    Raises the errors of `layer_weights`.
    """
    return as_computed(llama.encoder_weights(weights, config, PARTS), config)


GEMMA3 = Family(prefixes=("model.",), tokens={}, read_config=read_config, encoder_weights=encoder_weights, head={})
