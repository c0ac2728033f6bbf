"""Settings of tokenizer_config.json: what they change, as transformers applies them, and how far texts are read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import bert_likes
from support.deberta import save_deberta
from support.models import edit_json, save_bi_encoder, save_cross_encoder, write_json
from support.modernbert import save_ettin
from support.refusals import assert_refused
from transformers import AutoTokenizer

from bandrank.models.hf.files import load_tokenizer
from bandrank.models.loading import load_model

NEW, MASK = ({"__type": "AddedToken", "content": token, "special": True} for token in ("[NEW]", "[MASK]"))
LEFT = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
TEXTS = ["The MAN", "m\u00e1n after", "the \u4e2d\u56fd man", "the man", "a [NEW][new] [unused0] the [MASK] [PAD]y"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"},
        {"tokenizer_class": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("cased", [False, True])
def test_settings_overrule_the_tokenizer(tmp_path: Path, settings: dict[str, Any], *, cased: bool) -> None:
    """So do the defaults of BERT's class. A class that takes tokenizer.json as it is ignores the settings."""
    folder = save_cross_encoder(tmp_path)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"} | settings)
    if cased:
        replace(folder, '"lowercase": true', '"lowercase": false')

    assert_same_ids(folder)


def replace(folder: Path, old: str, new: str) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def assert_same_ids(folder: Path) -> None:
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    expected = [theirs(text, add_special_tokens=False).input_ids for text in TEXTS]
    assert [ours.encode(text, add_special_tokens=False).ids for text in TEXTS] == expected


@pytest.mark.parametrize("kind", ["BertTokenizer", "TokenizersBackend"])
@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("tokenizer_config", {"extra_special_tokens": {"x_token": "[NEW]"}, "pad_token": "[PAD]"}),
        ("tokenizer_config", {"added_tokens_decoder": {"1000": NEW, "999": {"content": "[New]"}}, "mask_token": MASK}),
        ("special_tokens_map", {"additional_special_tokens": ["[NEW]", "[unused0]"], "mask_token": "[MASK]"}),
    ],
)
def test_special_tokens_that_the_settings_alone_name(
    tmp_path: Path, kind: str, file: str, settings: dict[str, Any]
) -> None:
    """They are added as in the library, with the next ids if the vocabulary lacks them."""
    folder = save_cross_encoder(tmp_path)
    write_json(folder / f"{file}.json", settings)
    edit_json(folder / "tokenizer_config.json", {"tokenizer_class": kind})
    if kind == "TokenizersBackend":  # the other class names tokens itself
        edit_json(folder / "tokenizer.json", {"added_tokens": []})

    assert_same_ids(folder)


@pytest.mark.parametrize(
    ("kind", "theirs", "typed"),
    [
        ("BertTokenizer", True, True),
        ("DistilBertTokenizer", False, False),
        ("TokenizersBackend", False, False),  # of transformers 5, for tokenizers without a class of their own
        ("PreTrainedTokenizerFast", False, True),  # the same of transformers 4, which did hand types out
        (None, True, True),
    ],
)
def test_types_that_the_class_of_a_tokenizer_hands_out(
    tmp_path: Path, kind: str | None, *, theirs: bool, typed: bool
) -> None:
    """The class decides, whatever types the template has, unless the settings list the inputs."""
    folder = save_cross_encoder(tmp_path)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind} if kind else {})
    assert ("token_type_ids" in AutoTokenizer.from_pretrained(folder)("a", "b")) == theirs

    assert load_model(str(folder)).scorer.config.token_types == typed
    edit_json(folder / "tokenizer_config.json", {"model_input_names": ["input_ids", "token_type_ids"]})
    assert load_model(str(folder)).scorer.config.token_types


@pytest.mark.parametrize("save", [save_cross_encoder, save_ettin, save_bi_encoder])
def test_a_tokenizer_with_more_tokens_than_the_weights(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    """A text with a token that has no embedding could not be scored."""
    folder = save(tmp_path)
    tokenizer = load_tokenizer(folder)
    rows = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["[Q]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert_refused(folder, rf"'\[Q\]' of the tokenizer is {rows}, .* embed {rows} tokens")


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    """A vocabulary that is too large is noticed even if the file lists no added tokens."""
    folder = save_cross_encoder(tmp_path)
    load_model(str(folder))
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = saved["model"]["vocab"]
    rows = len(vocabulary)
    saved["model"]["vocab"] = vocabulary | {"another": rows}
    for added in ([], saved["added_tokens"]):
        write_json(folder / "tokenizer.json", saved | {"added_tokens": added})
        assert_refused(folder, rf"'another' of the tokenizer is {rows}, .* embed {rows} tokens")


@pytest.mark.parametrize("begins", [True, False, None])
def test_a_space_before_a_text(tmp_path: Path, *, begins: bool | None) -> None:
    """If its settings say so, RoBERTa's tokenizer begins a text as it begins a word, with a space."""
    folder = bert_likes.save(tmp_path, "cross-encoder/stsb-roberta-base")
    if begins is None:
        replace(folder, '"add_prefix_space": false', '"add_prefix_space": true')
    else:
        edit_json(folder / "tokenizer_config.json", {"add_prefix_space": begins})
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)

    expected = theirs("the man", add_special_tokens=False).input_ids
    assert ours.encode("the man", add_special_tokens=False).ids == expected
    assert (ours.encode("the man").tokens[1] == "\u0120the") == bool(begins)


@pytest.mark.parametrize("save", [save_cross_encoder, save_ettin, save_bi_encoder])
def test_the_limit_of_texts(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    """The limit of sentence-transformers overrides the tokenizer's, in every kind of folder, and neither exceeds the
    number of positions.
    """
    folder = save(tmp_path)

    def limit(of_transformer: int | None, of_tokenizer: int) -> int:
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": of_transformer})
        edit_json(folder / "tokenizer_config.json", {"model_max_length": of_tokenizer})
        return load_model(str(folder)).scorer.config.max_tokens  # type: ignore[no-any-return]

    assert [limit(32, 64), limit(None, 64), limit(64, 32)] == [32, 64, 64]
    assert limit(None, int(1e30)) == limit(10**9, 32) > 64


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("sentence_bert_config", {"query_length": 5, "document_length": 6}, "'query_length': 5, 'document_length': 6"),
        ("sentence_bert_config", {"processing_kwargs": {"text": {"max_length": 6}}}, "'processing_kwargs.text': "),
        ("tokenizer_config", {"truncation_side": "left"}, "'truncation_side': 'left'"),
        ("tokenizer", {"truncation": LEFT}, "'truncation_side': 'left'"),
    ],
)
def test_texts_that_are_read_otherwise_are_refused(
    tmp_path: Path, file: str, settings: dict[str, Any], message: str
) -> None:
    """Settings that change nothing are not refused."""
    folder = save_bi_encoder(tmp_path)
    of_tokenizer = {"trust_remote_code": True, "padding_side": "left"}
    harmless = {"processing_kwargs": {"chat_template": {"x": 1}}, "tokenizer_args": of_tokenizer}
    write_json(folder / "sentence_bert_config.json", harmless)
    load_model(str(folder))
    edit_json(folder / f"{file}.json", settings)
    assert_refused(folder, rf"texts that are read by \{{{message}.*are not supported")


@pytest.mark.parametrize("name", ["do_lower_case", "split_by_punct"])
def test_a_deberta_that_splits_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    """DeBERTa's class in transformers would change what tokenizer.json does; published models leave these off."""
    folder = save_deberta(tmp_path)
    edit_json(folder / "tokenizer_config.json", {name: False})
    load_model(str(folder))
    edit_json(folder / "tokenizer_config.json", {name: True})
    assert_refused(folder, f"a DeBERTa's tokenizer with .*{name}")
