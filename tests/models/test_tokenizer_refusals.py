"""Tokenizers of Hugging Face folders that are refused, with a message that says why."""

import sys
from io import StringIO
from pathlib import Path

import pytest
from support import bert_likes
from support.models import edit_json, save_cross_encoder, write_json
from support.refusals import assert_refused
from support.tokenizer import CLS_ID, SEP_ID, tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers.utils import import_utils

from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.hf import files
from bandrank.models.loading import load_model


def test_no_tokenizer(tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path)
    (folder / "tokenizer.json").unlink()
    assert_refused(folder, r"no tokenizer\.json and no vocab\.txt")


def test_a_tokenizer_that_is_written_in_python(tmp_path: Path) -> None:
    """vinai/phobert-base has such a tokenizer, and so have re-rankers that are trained from it."""
    folder = save_cross_encoder(tmp_path)
    (folder / "tokenizer.json").unlink()
    for name in ("vocab.txt", "bpe.codes"):
        (folder / name).write_text("the 9\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PhobertTokenizer"})
    assert_refused(folder, r"no tokenizer\.json, and none can be made .*PhobertTokenizer")


def test_code_beside_a_vocabulary_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would ask on the terminal whether to run it."""
    write_json(tmp_path / "config.json", {"model_type": "new", "auto_map": {"AutoConfig": "code.Config"}})
    (tmp_path / "code.py").write_text("raise SystemExit", encoding="utf-8")
    (tmp_path / "vocab.txt").touch()
    monkeypatch.setattr(sys, "stdin", StringIO("y"))
    with pytest.raises(BadCheckpoint, match="none can be made of the other files"):
        files.load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["spiece", "sentencepiece.bpe"])
def test_a_sentencepiece_model_without_its_packages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages with which transformers reads such a file are no dependencies of bandrank."""
    (tmp_path / f"{name}.model").touch()
    monkeypatch.setattr(import_utils, "is_sentencepiece_available", lambda: False)
    with pytest.raises(BadCheckpoint, match="pip install sentencepiece protobuf"):
        files.load_tokenizer(tmp_path)


def test_the_vocabulary_of_another_tokenizer(tmp_path: Path) -> None:
    """Without the file that it reads, transformers makes an XLM-RoBERTa tokenizer that knows no word."""
    folder = bert_likes.save(tmp_path, "BAAI/bge-reranker-base")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("the\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "XLMRobertaTokenizer"})
    assert_refused(folder, "it would know special tokens alone")


def test_a_tokenizer_without_sep(tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path)
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(text.replace("[SEP]", "</s>"), encoding="utf-8")
    edit_json(folder / "tokenizer.json", {"post_processor": None})
    assert_refused(folder, r"the tokenizer has no \[SEP\]")


@pytest.mark.parametrize(
    ("single", "pair", "message"),
    [
        ("$A [SEP]", "$A [SEP] $B [SEP]", r"puts the tokens \[7\] around a text and \[7, 7\] around two"),
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] [CLS] $B [SEP]", r"around a text and \[6, 7, 6, 7\] around two"),
        ("[CLS] [CLS] $A [SEP]", "[CLS] [CLS] $A [SEP] $B [SEP]", r"\[6, 6, 7\] around a text"),
    ],
)
def test_a_tokenizer_with_a_template_of_another_form(tmp_path: Path, single: str, pair: str, message: str) -> None:
    """Special tokens must not be put where they never were in training."""
    folder = save_cross_encoder(tmp_path)
    tokenizer = tiny_tokenizer()
    special = [("[CLS]", CLS_ID), ("[SEP]", SEP_ID)]
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert_refused(folder, message)


def test_types_that_the_tokenizer_does_not_hand_out(tmp_path: Path) -> None:
    """A model whose tokenizer_config.json leaves token types out was trained with the first type alone."""
    folder = save_cross_encoder(tmp_path)
    edit_json(folder / "tokenizer_config.json", {"model_input_names": ["input_ids", "attention_mask"]})

    assert not load_model(str(folder)).scorer.config.token_types
