"""Scores of pairs of texts, as clients of vLLM, SGLang and Metarank ask for them."""

from typing import Any

import pytest
import torch
from support.app import assert_error, running_app
from support.dialects import IMAGE, RAW, SIGMOIDS, WORDS, ask, in_parts
from support.models import tiny_cross_encoder
from support.scorers import Gate, WatchedScorer, encoded_lookup, lookup

from bandrank.settings import Settings


@pytest.mark.parametrize(
    "body",
    [
        {"text_1": "who", "text_2": WORDS},
        {"text_1": ["who"], "text_2": WORDS},
        {"queries": "who", "documents": WORDS, "model": "BAAI/bge-reranker-v2-m3"},
        {"queries": "who", "items": WORDS, "documents": None, "truncate_prompt_tokens": -1},
        {"data_1": ["who"] * 4, "data_2": WORDS, "use_activation": None, "priority": 0},
        {"queries": in_parts("who"), "documents": [in_parts("man"), "she", in_parts("he"), "you"]},
        {"text_1": [in_parts("who")] * 4, "text_2": WORDS, "max_tokens_per_query": 1, "chat_template_kwargs": {}},
        {"data_1": ["who", "is", "it", "she"], "data_2": WORDS, "activation": "true"},
    ],
    ids=lambda body: f"{[*body]}",
)
async def test_a_score_for_each_pair(body: dict[str, Any]) -> None:
    """Clients have several names for either side, and pair one query with all texts or each text with its own."""
    answer = (await ask("/v1/score", body)).json()

    assert answer.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert [(each["index"], each["object"]) for each in answer["data"]] == [(index, "score") for index in range(4)]
    assert [each["score"] for each in answer["data"]] == pytest.approx(SIGMOIDS, rel=1e-6)


async def test_one_pair_may_be_two_texts() -> None:
    """Without a list on either side the answer has one score, which is raw if the client says so."""
    answer = (await ask("/score", {"text_1": "who", "text_2": "he", "use_activation": False})).json()

    assert [each["score"] for each in answer["data"]] == [4.0]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


async def test_one_pair_may_come_in_parts() -> None:
    answer = (await ask("/score", {"text_1": in_parts("who"), "text_2": in_parts("he", "she")})).json()

    assert [each["score"] for each in answer["data"]] == pytest.approx([SIGMOIDS[2]], rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"max_tokens_per_query": 2}, ["max_tokens_per_query"]),
        ({"max_tokens_per_query": 1, "truncate_prompt_tokens": 3}, ["truncate_prompt_tokens", "max_tokens_per_query"]),
        ({"truncate_prompt_tokens": 99, "truncation_side": "left"}, ["truncate_prompt_tokens"]),
    ],
)
async def test_an_answer_warns_of_what_was_not_done(fields: dict[str, Any], warned: list[str]) -> None:
    """One query to which a limit could not be applied is enough for a warning."""
    answer = (await ask("/score", {"text_1": ["who", "who is it"], "text_2": ["man", "he"]} | fields)).json()

    assert [warning.split()[0] for warning in answer["meta"]["warnings"]] == warned


async def test_each_pair_is_scored_for_its_own_query() -> None:
    """A pair scores as it does alone, even if its query is in other pairs too."""
    queries = ["who is it", "the man", "who is it", "she"] * 5
    texts = [f"{word} {word}" for word in ["man", "she", "he", "you", "man"] * 4]
    async with running_app(tiny_cross_encoder()) as running:
        together = (await running.client.post("/score", json={"text_1": queries, "text_2": texts})).json()["data"]
        metarank = {"input": [{"query": query, "text": text} for query, text in zip(queries, texts, strict=True)]}
        raw = (await running.client.post("/inference/cross/ms-marco", json=metarank)).json()
        alone = [
            (await running.client.post("/score", json={"text_1": query, "text_2": text})).json()["data"][0]["score"]
            for query, text in zip(queries, texts, strict=True)
        ]

    assert len({round(score, 4) for score in alone}) > 5
    assert [each["score"] for each in together] == pytest.approx(alone, abs=1e-5)
    assert type(raw["took"]) is int  # Metarank's client fails without it
    assert torch.sigmoid(torch.tensor(raw["scores"])).tolist() == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"text_1": ["who", "is"], "text_2": ["he"]}, "2 texts cannot be paired with 1"),
        ({"text_1": ["who", "is"], "text_2": ["he", "she", "man"]}, "2 texts cannot be paired with 3"),
        ({"text_1": "who"}, "give both sides of the pairs, as queries and documents or"),
        ({"text_1": "who", "documents": ["he"]}, "give both sides"),
        ({"text_1": ["who", " "], "text_2": ["he", "she"]}, "query must not be empty"),
        ({"text_1": "who", "text_2": []}, "text_2"),
        ({"text_1": "who", "text_2": ["he"], "queries": "who", "items": ["she"]}, "under which they differ"),
        ({"text_1": "who", "text_2": ["he", IMAGE]}, "text_2: a part of type 'image_url' cannot be ranked"),
        ({"text_1": IMAGE, "text_2": "he"}, "text_1: a part of type 'image_url' cannot be ranked"),
        ({"queries": ["who", in_parts(" ")], "items": ["he", "she"]}, "query must not be empty"),
        ({"text_1": "who", "text_2": {"text": "he"}}, "text_2"),
        ({"text_1": "who", "text_2": "he", "max_tokens_per_query": 1.5}, "max_tokens_per_query"),
    ],
)
async def test_what_makes_no_pairs_is_refused(body: dict[str, Any], says: str) -> None:
    async with running_app(lookup()) as running:
        response = await running.client.post("/score", json=body)

    assert says in assert_error(response, 422, "invalid_input")


async def test_scores_do_not_depend_on_how_many_there_are() -> None:
    """A cascade would shift those that its last stage does not see, and so would a stage that a budget cuts short."""
    texts = [*WORDS, "man"]
    pairs = [{"query": "who", "text": text} for text in texts]
    settings = Settings(device="cpu", cascade_depth=2)
    async with running_app(lookup(man=9.0, she=-3.0), fast=encoded_lookup(she=4.0), settings=settings) as running:
        answers = [
            (await running.client.post("/score", json={"text_1": "who", "text_2": some})).json()["data"]
            for some in (texts, *texts)
        ]
        hurry = {"X-Budget-Ms": "0.001"}
        body = {"text_1": "who", "text_2": texts}
        hurried = (await running.client.post("/score", json=body, headers=hurry)).json()["data"]
        request = {"json": {"input": pairs}, "headers": hurry}
        of_metarank = (await running.client.post("/inference/cross/tiny", **request)).json()["scores"]

    together, *alone = [[each["score"] for each in answer] for answer in answers]
    assert hurried == answers[0]
    assert together == [score for [score] in alone]
    assert torch.tensor(of_metarank).sigmoid().tolist() == pytest.approx(together, rel=1e-6)


async def test_many_queries_share_one_deadline() -> None:
    gate = Gate()
    settings = Settings(device="cpu", request_timeout_s=0.3, patience=1e6)
    queries = [f"{number}" for number in range(100)]
    async with running_app(WatchedScorer(lookup(**RAW), gate), settings=settings, started=False) as running:
        try:
            response = await running.client.post("/score", json={"text_1": queries, "text_2": ["man"] * 100})
        finally:
            gate.let_through(1000)

    assert_error(response, 504, "deadline_exceeded")


async def test_a_failure_ends_the_other_queries() -> None:
    """A pair that is too large fails the whole request, and none of its other pairs stays in the queue."""
    settings = Settings(device="cpu", max_waiting_rows=50)  # fewer than the self-test at startup needs
    async with running_app(lookup(**RAW), settings=settings, started=False) as running:
        body = {"text_1": ["who", "she " * 60, "is"], "text_2": ["man", "he " * 60, "man"]}
        refused = await running.client.post("/score", json=body)
        waiting = (await running.scrape()).value("bandrank_waiting_tasks")

    assert_error(refused, 413, "input_too_large")
    assert waiting == 0
