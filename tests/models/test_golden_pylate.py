"""ColBERT in PyLate's format against `sentence-transformers`, which reads that format."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from support.models import edit_json, random_text, score_batch, tiny_hf_encoder
from support.modernbert import save_pylate, tiny_modernbert_encoder
from support.tokenizer import CLS_ID, SEP_ID

from bandrank.models import hf
from bandrank.models.architectures import ColBERT
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import load_model

CLOSE = 1e-4  # float32; a sum of 11 cosines


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attend_to_expansion_tokens": True},
        {"do_query_expansion": False},
        {"skiplist_words": None},
        {"skiplist_words": []},
        {"query_prefix": None, "document_prefix": None},
        {"query_prefix": "", "document_prefix": "[unused1]"},
    ],
    ids=str,
)
def test_scores_are_those_of_sentence_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    """lightonai/GTE-ModernColBERT-v1: markers, [MASK] rows, skipped punctuation; short and long queries, cut texts."""
    folder = save_pylate(tmp_path, **settings)
    model = load_model(str(folder))
    assert isinstance(model.scorer, ColBERT)
    scorer, rng = model.scorer, random.Random(0)
    queries = [random_text(rng, 3), random_text(rng, 30)]
    texts = ["A", f"{random_text(rng, 8)}, {random_text(rng, 3)}.", random_text(rng, 63), random_text(rng, 400)]

    def ids(text: str, template: Any) -> list[int]:
        return template.apply(model.tokenizer.encode(text, add_special_tokens=False).ids)[0]  # type: ignore[no-any-return]

    documents = [ids(text, scorer.candidate_template) for text in texts]
    with torch.inference_mode():
        batch = score_batch([ids(query, scorer.query_template) for query in queries], [documents, documents])
        scores = scorer(batch).view(2, -1)

    theirs = MultiVectorEncoder(str(folder), device="cpu")
    expected = [
        [(theirs.encode_query(query) @ theirs.encode_document(text).T).amax(-1).sum() for text in texts]
        for query in queries
    ]
    torch.testing.assert_close(scores, torch.tensor(expected), rtol=0, atol=CLOSE)
    assert scores.std() > 100 * CLOSE


def test_templates(tmp_path: Path) -> None:
    """[CLS], marker, text, [SEP]; lengths count all four."""
    scorer = hf.load(save_pylate(tmp_path))

    assert scorer.query_template.apply([60] * 40)[0] == [CLS_ID, 1, *[60] * 8, SEP_ID]
    assert len(scorer.candidate_template.apply([60] * 400)[0]) == 300


def test_on_bert(tmp_path: Path) -> None:
    """The format does not depend on the encoder."""
    assert isinstance(hf.load(save_pylate(tmp_path, tiny_hf_encoder())), ColBERT)


def test_what_is_not_supported(tmp_path: Path) -> None:
    """A projection that computes something else; [MASK] rows that would see no token."""
    folder = save_pylate(tmp_path / "dense")
    edit_json(folder / "1_Dense" / "config.json", {"activation_function": "torch.nn.modules.activation.Tanh"})
    narrow = save_pylate(tmp_path / "narrow", tiny_modernbert_encoder(local_attention=16))
    edit_json(narrow / "config_sentence_transformers.json", {"query_length": 32})
    prompted = save_pylate(tmp_path / "prompts", prompts={"query": "the man ", "document": ""})

    with pytest.raises(BadCheckpoint, match=r"a ColBERT with the prompts .*'the man '.* is not supported"):
        hf.load(prompted)
    with pytest.raises(BadCheckpoint, match="a projection with activation Tanh"):
        hf.load(folder)
    with pytest.raises(BadCheckpoint, match=r"\[MASK\] rows of 32 see no token within a window of 8"):
        hf.load(narrow)
