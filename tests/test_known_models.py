"""`bandrank models`: what it prints, and whether that is true."""

from pathlib import Path

import pytest

from bandrank.__main__ import main
from bandrank.known_models import markdown
from bandrank.models.hf.decoder_reranker import PROMPTS
from bandrank.models.hf.families import FAMILIES
from bandrank.models.hf.qwen import MAX_DECODER_TOKENS
from bandrank.models.known import KNOWN_FAMILIES
from bandrank.models.shipped import names

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"


def test_every_listed_family_loads_and_every_family_is_listed() -> None:
    """Each `model_type` is listed once, except "bert", which JinaBERT shares with BERT."""
    listed = [model_type for family in KNOWN_FAMILIES for model_type in family.model_types]
    listed.remove("bert")

    assert len(listed) == len({*listed})
    assert {*listed} == FAMILIES.keys()


def test_no_model_is_listed_twice() -> None:
    ids = [model.id for family in KNOWN_FAMILIES for model in family.models]

    assert len(ids) == len({*ids})
    assert all(len(each.split("/")) == 2 for each in ids)


def test_no_decoder_is_said_to_read_more_than_it_does() -> None:
    """The list has the length that bandrank reads, even where the model's authors allow more."""
    decoders = [family for family in KNOWN_FAMILIES if PROMPTS.keys() & {*family.model_types}]

    assert len(decoders) == 2
    assert all(model.tokens <= MAX_DECODER_TOKENS for family in decoders for model in family.models)


def test_the_page_has_the_table() -> None:
    """docs/models.md contains the output of `bandrank models --markdown`."""
    assert markdown() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [[], ["--markdown"]])
def test_all_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The output has each family with its notes and each model id, but the shipped scorers only without --markdown."""
    assert main(["models", *arguments]) == 0
    out = capsys.readouterr().out

    for family in KNOWN_FAMILIES:
        assert family.name in out
        assert family.special in out
        assert all(model.id in out for model in family.models)
    assert all(name in out for name in names()) is not bool(arguments)
