"""RoBERTa, XLM-RoBERTa and CamemBERT as transformers saves them: BERT with other positions, separators and names.

Jina AI's own code for XLM-RoBERTa (jinaai/jina-reranker-v2-base-multilingual) computes the same, and saves it under the
names of flash-attention's BERT.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from transformers import RobertaConfig

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf import bert
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames
from bandrank.models.hf.model import Family, score_head
from bandrank.models.hf.settings import require_plain

FLASH = "XLMRobertaFlashConfig"  # the AutoConfig of their config.json, which has no model_type
FLASH_PLAIN = {"position_embedding_type": "absolute", "lora_adaptations": None, "last_layer_subset": False}
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
    """The encoder's shape, as Jina AI's code saves it; the embeddings' norm gets its usual name. Raises ValueError for
    unsupported settings, such as adapters and rotary positions (jinaai/jina-embeddings-v3).
    """
    require_plain(settings, FLASH_PLAIN, FLASH.removesuffix("Config"))
    for part in ("weight", "bias"):
        weights[f"embeddings.LayerNorm.{part}"] = weights.pop(f"emb_ln.{part}")
    return read_config(settings, weights)


ROBERTA = Family(
    prefixes=("roberta.",),
    tokens={"cls": "<s>", "sep": "</s>", "mask": "<mask>"},
    read_config=read_config,
    encoder_weights=bert.encoder_weights,
    head=score_head("classifier.dense", "classifier.out_proj"),
    query_separators=2,
)
FLASH_ROBERTA = replace(
    ROBERTA, read_config=read_flash_config, encoder_weights=partial(bert.encoder_weights, names=FLASH_NAMES)
)
