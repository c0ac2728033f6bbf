"""RoBERTa, XLM-RoBERTa and CamemBERT as transformers saves them: BERT with other positions, separators and names.

Jina AI's own code for XLM-RoBERTa (jinaai/xlm-roberta-flash-implementation) computes the same, or rotary positions, and
saves it under the names of flash-attention's BERT, as transformers does with its `jina_embeddings_v3`.
"""

from dataclasses import replace
from typing import Any

from transformers import RobertaConfig

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.rotary_bert import JINA_ROTARY, RotaryRobertaConfig
from bandrank.models.hf import bert, unplaced_bert
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames
from bandrank.models.hf.model import Family, head_names
from bandrank.models.hf.rotary import read_rotary
from bandrank.models.hf.settings import require_plain
from bandrank.models.hf.task_adapters import restore_names

FLASH = "XLMRobertaFlashConfig"  # the AutoConfig of their config.json
JINA_3 = "jina_embeddings_v3"  # transformers' model_type
FLASH_DEFAULTS = {"layer_norm_eps": 1e-5, "num_attention_heads": 16}  # of both classes, and not BERT's
FLASH_PLAIN = {"hidden_act": "gelu", "last_layer_subset": False}
ROTARY_PLAIN = {"position_embedding_type": "rotary", "rotary_emb_scale_base": None, "rotary_emb_interleaved": False}
FLASH_NAMES = LayerNames(
    layer="encoder.layers",
    parts={
        "qkv": "mixer.Wqkv",
        "attention_out": "mixer.out_proj",
        "attention_norm": "norm1",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
        "out_norm": "norm2",
    },
)


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. The first token has the row of the position table behind the padding's; the rows before are
    dropped. Raises ValueError for unsupported settings.
    """
    roberta = RobertaConfig.from_dict(settings)
    first = (roberta.pad_token_id or 0) + 1
    weights[bert.POSITIONS] = weights[bert.POSITIONS][first:]
    return bert.read_config(settings | {"max_position_embeddings": len(weights[bert.POSITIONS])}, weights)


def read_flash_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape, as Jina AI's code saves it, with rotary positions if there is no table. Renames tensors.

    Raises ValueError for missing or unsupported settings.
    """
    name, settings = FLASH.removesuffix("Config"), FLASH_DEFAULTS | settings
    require_plain(settings, FLASH_PLAIN, name)
    restore_names(settings, weights)
    for part in ("weight", "bias"):
        weights[f"embeddings.LayerNorm.{part}"] = weights.pop(f"emb_ln.{part}")
    if bert.POSITIONS in weights:
        return read_config(settings, weights)
    shape = unplaced_bert.read_shape(settings, weights)
    head_dim = shape["hidden_size"] // shape["num_heads"]
    require_plain(settings, ROTARY_PLAIN | {"rotary_emb_dim": head_dim}, name)
    own = {"rope_theta": settings.get("rotary_emb_base", 10_000.0)}  # the default of their class
    rope = {"rope_theta": JINA_ROTARY.base} | settings if settings.get("model_type") == JINA_3 else own
    return RotaryRobertaConfig(**shape, rotary=read_rotary(rope, head_dim))


def flash_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The encoder's tensors under our names. Raises the errors of `layer_weights`."""
    if isinstance(config, RotaryRobertaConfig):
        return unplaced_bert.encoder_weights(weights, config, FLASH_NAMES)
    return bert.encoder_weights(weights, config, FLASH_NAMES)


ROBERTA = Family(
    prefixes=("roberta.",),
    tokens={"cls": "<s>", "sep": "</s>", "mask": "<mask>"},
    read_config=read_config,
    encoder_weights=bert.encoder_weights,
    head=head_names(pooler="classifier.dense", classifier="classifier.out_proj"),
    mlm_head=("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"),
    query_separators=2,
)
FLASH_ROBERTA = replace(ROBERTA, read_config=read_flash_config, encoder_weights=flash_weights, mlm_head=None)
