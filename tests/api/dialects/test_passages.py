"""The best passages in answers: in bandrank's own dialect, and as the relevant spans of Cohere's."""

import random
from typing import Any

import numpy as np
import pytest
from support.app import RunningApp, assert_error, running_app
from support.models import random_text, tiny_cross_encoder
from support.scorers import encoded_lookup, lookup

from bandrank.api.dialects.dialect import sigmoid

TOLERANCE = 1e-5  # of float32 scores; a score must not depend on the other candidates
QUERY = "who was the man"
RNG = random.Random(1)
LONG = " 🐝 ".join(random_text(RNG, 20) for _ in range(8))
TEXTS = ["the café", LONG, random_text(RNG, 200)]


async def post(running: RunningApp, path: str, **body: Any) -> Any:
    """The answer; its status must be 200."""
    response = await running.client.post(path, json={"query": QUERY} | body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("raw", [False, True])
async def test_the_passage_of_a_result_scores_alone_as_the_result(raw: bool) -> None:
    """A passage's characters, sent as a candidate, get the passage's score; a text that fits is a single passage."""
    async with running_app(tiny_cross_encoder(positions=64)) as running:
        more = {"raw_scores": raw, "return_passages": True}
        answer = await post(running, "/rerank", candidates=TEXTS, **more)
        passages = {each["index"]: each["passage"] for each in answer["results"]}
        slices = [text[passages[index]["start"] : passages[index]["end"]] for index, text in enumerate(TEXTS)]
        alone = await post(running, "/rerank", candidates=slices, **more)

    assert [each["passage"]["score"] for each in answer["results"]] == [
        each["relevance_score"] for each in answer["results"]
    ]
    scores = {each["index"]: each["relevance_score"] for each in alone["results"]}
    assert scores == pytest.approx({index: each["score"] for index, each in passages.items()}, abs=TOLERANCE)
    assert [len(text) < len(whole) for text, whole in zip(slices, TEXTS, strict=True)] == [False, True, True]
    assert all(each["passage"]["end"] == len(slices[each["index"]]) for each in alone["results"])
    assert "warnings" not in answer["meta"]


async def test_spans_of_joined_fields_are_of_the_text_that_was_ranked() -> None:
    """Where a document has no text of its own, its joined fields come back as one, and spans are positions in that."""
    documents = [{"title": "Bees 🐝", "body": LONG, "year": 1999}, {"title": "Honey"}]
    async with running_app(tiny_cross_encoder(positions=64)) as running:
        asked = {"rank_fields": ["title", "body"], "return_documents": True, "relevant_spans": {"threshold": -1.0}}
        answer = await post(running, "/v1/rerank", documents=documents, **asked)
        ranked = {each["index"]: each["document"]["text"] for each in answer["results"]}
        own = await post(running, "/rerank", candidates=[ranked[0], ranked[1]], return_passages=True)

    expected = {each["index"]: [each["passage"]] for each in own["results"]}
    spans = {each["index"]: each["relevant_spans"] for each in answer["results"]}
    assert ranked == {0: f"Bees 🐝\n{LONG}", 1: "Honey"}
    assert spans == expected
    assert spans[1] == [{"start": 0, "end": 5, "score": spans[1][0]["score"]}]


@pytest.mark.parametrize("raw", [False, True])
async def test_a_span_below_the_threshold_is_left_out(raw: bool) -> None:
    """The threshold applies to scores between 0 and 1, even if raw scores are returned; it is 0.1 by default."""
    async with running_app(tiny_cross_encoder(positions=64)) as running:
        own = await post(running, "/rerank", candidates=TEXTS, raw_scores=True)
        scores = sigmoid(np.array([each["relevance_score"] for each in own["results"]], np.float32))
        between = float((scores[0] + scores[1]) / 2)
        counts = {}
        for threshold in (0.0, between, 1.0, None):
            asked = {"relevant_spans": {"mode": "enabled", "threshold": threshold, "max_spans": 3}, "raw_scores": raw}
            answer = await post(running, "/v2/rerank", documents=TEXTS, **asked)
            counts[threshold] = [len(each["relevant_spans"]) for each in answer["results"]]

    assert counts[0.0] == [1, 1, 1]
    assert counts[between] == [1, 0, 0]
    assert counts[1.0] == [0, 0, 0]
    assert counts[None] == [int(score >= 0.1) for score in scores]


@pytest.mark.parametrize("fields", [{}, {"relevant_spans": None}, {"relevant_spans": {"mode": "disabled"}}])
async def test_spans_are_absent_by_default(fields: dict[str, Any]) -> None:
    """Strict parsers fail on keys that they do not know."""
    async with running_app(tiny_cross_encoder(positions=64)) as running:
        answer = await post(running, "/v2/rerank", documents=TEXTS, **fields)
        own = await post(running, "/rerank", candidates=TEXTS, return_passages=None)

    assert all(each.keys() == {"index", "relevance_score"} for each in answer["results"])
    assert all(each.keys() == {"index", "relevance_score", "stage"} for each in own["results"])


async def test_the_answer_warns_of_stages_that_read_candidates_whole() -> None:
    """In a cascade, the warning names the fast stage, and is only there if a result comes from that stage."""
    words = ["man", "she", "he"]
    scorers = {"accurate": tiny_cross_encoder(positions=64), "fast": encoded_lookup(man=1.0)}
    async with running_app(scorers["accurate"], fast=scorers["fast"]) as running:
        warned = {}
        for strategy in ("fast", "accurate"):
            asked = {"strategy": strategy, "return_passages": True}
            answer = await post(running, "/rerank", candidates=words, **asked)
            warned[strategy] = answer["meta"].get("warnings", [])
            assert all(("passage" in each) == (strategy == "accurate") for each in answer["results"])
    async with running_app(lookup(man=1.0)) as running:
        vain = {"relevant_spans": {}, "truncate_prompt_tokens": 9, "truncation_side": "left"}
        cohere = await post(running, "/v2/rerank", documents=words, **vain)

    assert [len(each) for each in warned.values()] == [1, 0]
    assert "'fast'" in warned["fast"][0]
    assert len(cohere["meta"]["warnings"]) == 2
    assert all("relevant_spans" not in each for each in cohere["results"])


@pytest.mark.parametrize("wrong", [{"mode": "perhaps"}, {"threshold": "0.5"}, [], "enabled"])
async def test_malformed_relevant_spans_are_refused(wrong: Any) -> None:
    async with running_app(lookup()) as running:
        body = {"query": QUERY, "documents": TEXTS, "relevant_spans": wrong}
        message = assert_error(await running.client.post("/v2/rerank", json=body), 422, "invalid_input")

    assert message.startswith("relevant_spans")
