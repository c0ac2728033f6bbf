"""JinaBERT as its authors' code saves it (jinaai/jina-bert-implementation), and its variant for code, which norms
queries and keys (jinaai/jina-bert-v2-qk-post-norm). Both say in config.json that their `model_type` is BERT's.
"""

from dataclasses import replace
from typing import Any

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.jina_bert import JinaBertConfig
from bandrank.models.hf import bert, unplaced_bert
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, gates_first
from bandrank.models.hf.model import SUPPORTED
from bandrank.models.hf.settings import require_plain

CODE = "JinaBertConfig"
DEFAULTS = {"position_embedding_type": "absolute", "feed_forward_type": "original"}  # of that class
PLAIN = {"position_embedding_type": "alibi", "is_decoder": False}
GATED = ("geglu", "reglu")
FEED_FORWARD = {"up": "mlp.gated_layers", "down": "mlp.wo", "out_norm": "mlp.layernorm"}
OF_CODE_VARIANT = {
    "query_norm": "attention.self.layer_norm_q",
    "key_norm": "attention.self.layer_norm_k",
    "residual_norm": "layer_norm_1",
    "up": "mlp.up_gated_layer",
    "down": "mlp.down_layer",
    "out_norm": "layer_norm_2",
}
NORM_OF_QUERIES = "encoder.layer.0.attention.self.layer_norm_q.weight"


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for missing or unsupported settings, and KeyError for a missing tensor.

    `hidden_act` is for feed-forward sublayers without a gate, which no published model has; they are refused.
    """
    settings = DEFAULTS | settings
    require_plain(settings, PLAIN, "JinaBERT")
    if (activation := settings["feed_forward_type"]) not in GATED:
        raise ValueError(f"a JinaBERT with feed_forward_type {activation!r} is not supported; {SUPPORTED}")
    shape = unplaced_bert.read_shape(settings, weights) | {"num_token_types": len(weights[unplaced_bert.TYPES])}
    return JinaBertConfig(**shape, activation=activation, norms_queries=NORM_OF_QUERIES in weights)


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The encoder's tensors under our names. Raises the errors of `layer_weights`."""
    assert isinstance(config, JinaBertConfig), "the config of another family. This is a bug."
    others = OF_CODE_VARIANT if config.norms_queries else FEED_FORWARD
    names = LayerNames(bert.NAMES.layer, dict(bert.NAMES.parts) | others)
    translated = unplaced_bert.encoder_weights(weights, config, names)
    return gates_first(translated) if config.norms_queries else translated


JINA_BERT = replace(bert.BERT, read_config=read_config, encoder_weights=encoder_weights)
