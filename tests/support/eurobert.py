"""Folders of tiny EuroBERTs and UltraBERTs, and of other models with a tokenizer like Llama 3's."""

from pathlib import Path
from typing import Any

import pytest
from support.decoders import drawn
from support.grouped import BEGIN, SIZES, llama_tokenizer
from support.models import as_served, write_json, write_modules
from support.text_scores import scores_of_texts
from tokenizers import Tokenizer, processors
from transformers import PreTrainedModel

from bandrank.models import checkpoint
from bandrank.models.loading import load_model

CLOSE = 1e-5  # float32 through three layers, of scores about 1
END, MASK = "<|end_of_text|>", "<|mask|>"
LIKE_LLAMA = f"{BEGIN} $A", f"{BEGIN} $A {BEGIN}:1 $B:1"  # the templates of Llama 3's tokenizer, for a text and a pair
LIKE_BERT = f"{BEGIN} $A {END}", f"{BEGIN} $A {END} $B {END}"
SETTINGS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "num_labels": 1}


def tiny(kind: Any, **more: Any) -> Any:
    """A random model of a class of `transformers`, in eval mode. more: fields of its config."""
    return drawn(kind(kind.config_class(**SETTINGS | SIZES | more)))


def save_like_llama(folder: Path, model: PreTrainedModel, templates: tuple[str, str] = LIKE_LLAMA) -> Path:
    """Writes a folder with a tokenizer that has these templates for a text and for a pair."""
    model.save_pretrained(folder)
    tokenizer = Tokenizer.from_str(llama_tokenizer().to_str())
    tokenizer.add_special_tokens([MASK])
    tokenizer.post_processor = processors.TemplateProcessing(*templates, [(BEGIN, 0), (END, 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    spelled = {"bos_token": BEGIN, "eos_token": END, "pad_token": END, "mask_token": MASK}
    write_json(folder / "tokenizer_config.json", spelled | {"tokenizer_class": "TokenizersBackend"})
    return folder


def save_embedder(folder: Path, model: PreTrainedModel, pooling: str, templates: tuple[str, str] = LIKE_LLAMA) -> Path:
    """Writes the folder of a bi-encoder with prompts, like jinaai/jina-embeddings-v5-text-nano-retrieval."""
    save_like_llama(folder, model, templates)
    write_modules(folder, {"": "models.Transformer", "1_Pooling": "models.Pooling", "2_Normalize": "models.Normalize"})
    (folder / "1_Pooling").mkdir()
    size = SIZES["hidden_size"]
    write_json(folder / "1_Pooling" / "config.json", {"embedding_dimension": size, "pooling_mode": pooling})
    prompts = {"query": "Query: ", "document": "Document: "}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "similarity_fn_name": "cosine"})
    return folder


def assert_scores(folder: Path, query: str, texts: list[str], expected: list[float]) -> None:
    """Asserts the scores of a folder, which differ: in company, alone, as served, and from a checkpoint of ours."""
    model = load_model(str(folder))
    checkpoint.save(model.scorer, folder / "ours", tokenizer=folder / "tokenizer.json")
    ours = load_model(str(folder / "ours"))

    assert scores_of_texts(model, query, texts) == pytest.approx(expected, abs=CLOSE)
    assert [scores_of_texts(model, query, [text])[0] for text in texts] == pytest.approx(expected, abs=CLOSE)
    assert scores_of_texts(ours, query, texts) == pytest.approx(expected, abs=CLOSE)
    as_served(model.scorer)
    assert scores_of_texts(model, query, texts) == pytest.approx(expected, abs=CLOSE)
    assert max(expected) - min(expected) > 1000 * CLOSE
