"""Tiny random SPLADEs in sentence-transformers' format, with and without a table of weights for queries."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.bert_likes import KNOWN, config_of, save_fast_tokenizer, word_piece_tokenizer
from support.models import random_scorer, write_json, write_modules
from support.modernbert import tiny_config
from tokenizers import Tokenizer
from transformers import AutoModelForMaskedLM, PreTrainedModel

TRANSFORMER = "sparse_encoder.models.MLMTransformer.MLMTransformer"
POOLING = "sparse_encoder.models.SpladePooling.SpladePooling"
TABLE = "sparse_encoder.models.SparseStaticEmbedding.SparseStaticEmbedding"
ROUTER = "models.Router"
MODERNBERT = "ModernBERT"


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of a known model."""
    return word_piece_tokenizer() if name == MODERNBERT else KNOWN[name].tokenizer()


def tiny_masked_lm(name: str, **more: Any) -> PreTrainedModel:
    """A random masked language model with a known model's settings, in eval mode. more: fields of its config."""
    if name == MODERNBERT:
        config = tiny_config(**more)
    else:  # one logit for each piece, and none besides
        config = config_of(name, **{"vocab_size": tokenizer_of(name).get_vocab_size()} | more)
    return random_scorer(AutoModelForMaskedLM.from_config(config), 0)  # type: ignore[no-any-return]


def save_splade(
    folder: Path,
    name: str = "DistilBERT",
    *,
    model: PreTrainedModel | None = None,
    pooling: dict[str, Any] | None = None,
    table: bool = False,
    **library: Any,
) -> Path:
    """Writes a SPLADE's folder, with a Router as the OpenSearch project lays it out if there is a table.

    model: by default `tiny_masked_lm`.  pooling: settings of that module.  library: those of sentence-transformers.
    """
    (model or tiny_masked_lm(name)).save_pretrained(folder)
    save_fast_tokenizer(folder, tokenizer_of(name))
    place = "document_1_SpladePooling" if table else "1_SpladePooling"
    (folder / place).mkdir()
    write_json(folder / place / "config.json", pooling or {})
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"} | library)
    write_modules(folder, {"": ROUTER} if table else {"": TRANSFORMER, place: POOLING})
    if table:
        queries = "query_0_SparseStaticEmbedding"
        kinds = {queries: TABLE, "": TRANSFORMER, place: POOLING}
        router = {
            "types": {place: f"sentence_transformers.{kind}" for place, kind in kinds.items()},
            "structure": {"query": [queries], "document": ["", place]},
            "parameters": {"default_route": "document", "allow_empty_key": True},
        }
        write_json(folder / "router_config.json", router)
        save_fast_tokenizer(folder / queries, tokenizer_of(name))
        write_json(folder / queries / "config.json", {"frozen": True})
        chance = torch.Generator().manual_seed(7)
        weights = 5 * torch.rand(tokenizer_of(name).get_vocab_size(), generator=chance)
        save_file({"weight": weights}, folder / queries / "model.safetensors")
    return folder
