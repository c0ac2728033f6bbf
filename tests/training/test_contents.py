"""Digests of models, documents and judgements, which depend on the contents and not on where they lie."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.collections import write_collection
from support.models import tiny_cross_encoder
from support.scorers import loaded
from support.training import saved

from bandrank.models.fusion import Fusion
from bandrank_training.collection import open_collection
from bandrank_training.contents import digest, of_documents, of_judgements, of_model

DOCUMENTS, QUERIES, QRELS = {"d1": "the man", "d2": "she was"}, {"q": "who"}, {"q": {"d1": 1}}


def test_where_a_part_ends_counts() -> None:
    """The order of the parts counts too, and a text has the digest of its UTF-8 bytes."""
    assert len({digest(parts) for parts in (["ab", "c"], ["a", "bc"], ["c", "ab"], ["abc"])}) == 4
    assert digest(["é"]) == digest(["é".encode()])


def test_a_weight_more_or_less_is_another_model(tmp_path: Path) -> None:
    """Another setting, fusion or fast scorer also changes the digest; another name does not."""
    scorer = tiny_cross_encoder()
    model = loaded(scorer, name="one")
    assert of_model(replace(model, name="another")) == of_model(loaded(tiny_cross_encoder(), name="one"))
    digests = {of_model(model), of_model(loaded(tiny_cross_encoder(max_query_tokens=7)))}
    saved(tmp_path, tiny_cross_encoder())
    digests |= {of_model(replace(model, fusion=Fusion(str(tmp_path), weight))) for weight in (0.5, 1.0)}
    saved(tmp_path, tiny_cross_encoder(seed=1))
    digests.add(of_model(replace(model, fusion=Fusion(str(tmp_path), 1.0))))
    with torch.no_grad():
        next(scorer.parameters()).view(-1)[0] += 1
    digests.add(of_model(model))

    assert len(digests) == 6


@pytest.mark.parametrize(
    ("changes", "documents_differ", "judgements_differ"),
    [
        ({}, False, False),
        ({"documents": DOCUMENTS | {"d1": "the  man"}}, True, False),
        ({"documents": dict(reversed(DOCUMENTS.items()))}, True, False),
        ({"queries": {"q": "whom"}}, False, True),
        ({"qrels": {"q": {"d1": 2}}}, False, True),
    ],
)
def test_a_digest_changes_with_what_it_is_of(
    tmp_path: Path, changes: dict[str, dict[str, str]], *, documents_differ: bool, judgements_differ: bool
) -> None:
    parts = {"documents": DOCUMENTS, "queries": QUERIES, "qrels": QRELS, "split": "train"}
    one = open_collection(write_collection(tmp_path / "one", **parts))
    other = open_collection(write_collection(tmp_path / "other", **parts | changes))

    assert (of_documents(one) != of_documents(other)) == documents_differ
    assert (of_judgements(one, "train") != of_judgements(other, "train")) == judgements_differ
    assert of_documents(one, 1) != of_documents(one)
