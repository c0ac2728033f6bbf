"""Tiny random SPLADEs in sentence-transformers' format, with and without a table of weights for queries."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.bert_likes import KNOWN, word_piece_tokenizer
from support.models import HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS, random_scorer, write_json, write_modules
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


def tiny_masked_lm(name: str = "DistilBERT", **more: Any) -> PreTrainedModel:
    """A random masked language model with a known model's settings, in eval mode. more: fields of its config."""
    if name == MODERNBERT:
        config = tiny_config(**more)
    else:
        shape = {"hidden_size": HIDDEN_SIZE, "num_hidden_layers": 2, "num_attention_heads": NUM_HEADS}
        sizes = shape | {"vocab_size": tokenizer_of(name).get_vocab_size(), "intermediate_size": INTERMEDIATE_SIZE}
        config = KNOWN[name].config(**sizes | KNOWN[name].settings | more)
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
    _save_tokenizer(folder, name)
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
        _save_tokenizer(folder / queries, name)
        write_json(folder / queries / "config.json", {"frozen": True})
        chance = torch.Generator().manual_seed(7)
        weights = 5 * torch.rand(tokenizer_of(name).get_vocab_size(), generator=chance)
        save_file({"weight": weights}, folder / queries / "model.safetensors")
    return folder


def _save_tokenizer(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    tokenizer = tokenizer_of(name)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ("<s>", "<pad>", "</s>") if tokenizer.token_to_id("<s>") is not None else ("[CLS]", "[PAD]", "[SEP]")
    special = dict(zip(("cls_token", "pad_token", "sep_token"), names, strict=True))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"} | special)
