"""EuroBERT as transformers saves it, and as its authors did, who called the pooling `clf_pooling`."""

from typing import Any, Literal

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.llama import EuroBertConfig
from bandrank.models.hf import llama, sequence_cross_encoder
from bandrank.models.hf.files import Weights
from bandrank.models.hf.model import Family, Model, score_head
from bandrank.models.scorer import Scorer

POOLINGS: dict[str, Literal["cls", "late", "mean"]] = {"bos": "cls", "late": "late", "mean": "mean"}


def read_eurobert(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for missing or unsupported settings."""
    return EuroBertConfig(**llama.read_fields(settings, weights, "EuroBERT"))


def read_reranker(model: Model) -> Scorer:
    """The re-ranker of a folder. Raises BadCheckpoint, and KeyError for a missing tensor."""
    names = ("classifier_pooling", "clf_pooling")
    named = sorted({str(model.settings[name]) for name in names if name in model.settings}) or ["late"]
    if len(named) > 1 or named[0] not in POOLINGS:
        raise model.refuse(f"classifier_pooling {' and '.join(named)} is not supported, only one of {[*POOLINGS]}")
    return sequence_cross_encoder.build(model, POOLINGS[named[0]], model.head_weights)


EUROBERT = Family(
    prefixes=("model.",),
    tokens={"mask": "<|mask|>"},
    read_config=read_eurobert,
    encoder_weights=llama.encoder_weights,
    head=score_head("dense", "classifier"),
    read_reranker=read_reranker,
)
