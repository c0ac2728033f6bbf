"""RoBERTa, XLM-RoBERTa and CamemBERT as transformers saves them: BERT with other positions, separators and names."""

from typing import Any

from transformers import RobertaConfig

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf import bert
from bandrank.models.hf.files import Weights
from bandrank.models.hf.model import Family, score_head


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Rows of the position table up to the padding's are dropped: the first token has the row
    behind it. Raises ValueError for settings that are not supported.
    """
    roberta = RobertaConfig.from_dict(settings)
    first = (roberta.pad_token_id or 0) + 1
    weights[bert.POSITIONS] = weights[bert.POSITIONS][first:]
    return bert.read_config(settings | {"max_position_embeddings": len(weights[bert.POSITIONS])}, weights)


ROBERTA = Family(
    prefixes=("roberta.",),
    tokens={"cls": "<s>", "sep": "</s>", "mask": "<mask>"},
    read_config=read_config,
    encoder_weights=bert.encoder_weights,
    head=score_head("classifier.dense", "classifier.out_proj"),
    query_separators=2,
)
