"""A request may limit how much of each document is read, in every dialect that has a field for it."""

import random
from typing import Any

import pytest
from httpx import Headers
from support.app import RunningApp, running_app
from support.models import random_text, tiny_cross_encoder
from support.scorers import encoded_lookup, lookup

TOLERANCE = 1e-5  # of float32 scores; a score must not depend on the other candidates
QUERY = "who was the man"
RNG = random.Random(1)
TEXTS = [random_text(RNG, length) for length in (3, 8, 9, 100)]
CUT = [" ".join(text.split()[:8]) for text in TEXTS]
COHERE = {"query": QUERY, "documents": TEXTS}
LIMITED: dict[str, tuple[str, dict[str, Any]]] = {
    "our own": ("/rerank", {"query": QUERY, "candidates": TEXTS, "max_tokens_per_candidate": 8}),
    "cohere v2": ("/v2/rerank", COHERE | {"max_tokens_per_doc": 8}),
    "cohere v1": ("/v1/rerank", COHERE | {"max_tokens_per_doc": 8.0}),
    "vllm": ("/rerank", COHERE | {"max_tokens_per_doc": 8}),
    "llama.cpp": ("/v1/reranking", COHERE | {"max_tokens_per_doc": 8}),
    "vllm, pairs": ("/score", {"queries": QUERY, "documents": TEXTS, "max_tokens_per_doc": 8}),
}


async def scores(running: RunningApp, path: str, body: dict[str, Any]) -> tuple[dict[int, float], Any]:
    """The scores by index, and what the answer says of itself."""
    response = await running.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return scores_in(response.json()), response.json().get("meta")


def scores_in(answer: Any) -> dict[int, float]:
    results = answer["data"] if "data" in answer else answer["results"]
    return {each["index"]: each.get("score", each.get("relevance_score")) for each in results}


def cuts(headers: Headers) -> dict[str, int]:
    """The headers of an answer that tell of cuts."""
    return {name: int(headers[name]) for name in headers if name.startswith("x-truncated-")}


@pytest.mark.parametrize("client", LIMITED)
async def test_scores_with_a_limit_are_those_of_the_cut_texts(client: str) -> None:
    """Headers count what was cut, and the answer too if its dialect has a place for that."""
    path, body = LIMITED[client]
    [name] = {"documents", "candidates"} & body.keys()
    async with running_app(tiny_cross_encoder(positions=64)) as running:
        answer = await running.client.post(path, json=body)
        uncut = await running.client.post(path, json=body | {name: TEXTS[:1]})
        expected, _ = await scores(running, "/rerank", {"query": QUERY, "candidates": CUT})
        whole, _ = await scores(running, "/rerank", {"query": QUERY, "candidates": TEXTS})

    limited, meta = scores_in(answer.json()), answer.json().get("meta")
    assert limited == pytest.approx(expected, abs=TOLERANCE)
    assert abs(limited[3] - whole[3]) > 100 * TOLERANCE
    assert cuts(answer.headers) == {"x-truncated-tokens": 93, "x-truncated-candidates": 2}
    assert (uncut.status_code, cuts(uncut.headers)) == (200, {})
    if meta is not None:
        assert (meta["truncated_tokens"], meta["truncated_candidates"]) == (93, 2)
        assert "warnings" not in meta


async def test_a_text_that_is_too_long_is_told_whatever_truncate_says() -> None:
    """A scorer that reads a text as a whole must cut it, even if the client asks for no truncation; headers tell so."""
    body = {"query": "who " * 70, "texts": ["man", "she " * 120], "truncate": False}
    async with running_app(lookup()) as running:
        tei = await running.client.post("/rerank", json=body)
        voyage = {"query": body["query"], "documents": body["texts"], "truncation": False}
        other = await running.client.post("/voyage/v1/rerank", json=voyage)
        own = await running.client.post("/rerank", json={"query": body["query"], "candidates": body["texts"]})

    meta = own.json()["meta"]
    names = ("truncated_query_tokens", "truncated_tokens", "truncated_candidates")
    told = {"x-" + name.replace("_", "-"): meta[name] for name in names}
    assert min(told.values()) > 0
    assert cuts(tei.headers) == cuts(other.headers) == cuts(own.headers) == told


async def test_what_is_cut_of_pairs_is_told_for_all_queries() -> None:
    """Pairs may have several queries, each with texts of its own; headers count what was cut of all of them."""
    queries, texts = ["who " * 70, "he", "who " * 70], ["she " * 120, "man " * 130, "man"]
    listed = [{"query": query, "text": text} for query, text in zip(queries, texts, strict=True)]
    pairs: dict[str, dict[str, Any]] = {
        "/score": {"queries": queries, "documents": texts},
        "/inference/cross/any": {"input": listed},
    }
    asked = [(queries[0], [texts[0], texts[2]]), (queries[1], texts[1:2])]
    async with running_app(lookup(), fast=encoded_lookup()) as running:
        told = [cuts((await running.client.post(path, json=body)).headers) for path, body in pairs.items()]
        alone = [
            await running.rerank({"query": query, "candidates": some, "strategy": "accurate"}) for query, some in asked
        ]

    first, second = [cuts(answer.headers) for answer in alone]
    assert min(first["x-truncated-candidates"], second["x-truncated-candidates"]) == 1
    assert told == [{name: first[name] + second.get(name, 0) for name in first}] * 2


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
async def test_a_limit_in_chunks_is_one_in_passages(path: str) -> None:
    """A passage has 57 words, which fit into 64 positions with [CLS], a query of 4 words and two [SEP]. A second
    passage adds 29, since it begins half a passage after the first.
    """
    cut = {}
    async with running_app(tiny_cross_encoder(positions=64)) as running:
        for chunks in (1, 2, 3, 0, None):
            _, meta = await scores(running, path, COHERE | {"max_chunks_per_doc": chunks})
            cut[chunks] = meta["truncated_tokens"]

    assert cut == {1: 100 - 57, 2: 100 - 57 - 29, 3: 0, 0: 0, None: 0}


@pytest.mark.parametrize("limit", [0, None, 4096])
async def test_no_limit_and_a_wide_one_cut_nothing(limit: int | None) -> None:
    """Other services take 0 to mean no limit."""
    async with running_app(tiny_cross_encoder(positions=64)) as running:
        whole, meta = await scores(running, "/v2/rerank", COHERE | {"max_tokens_per_doc": limit})
        expected, _ = await scores(running, "/v2/rerank", COHERE)

    assert whole == expected
    assert meta["truncated_tokens"] == 0


@pytest.mark.parametrize("limit", [-1, 2.5, "8", True, [8]])
async def test_a_limit_that_is_no_count_is_refused(limit: Any) -> None:
    async with running_app(tiny_cross_encoder(positions=64)) as running:
        for path, body in LIMITED.values():
            wrong = {name: limit if name.startswith("max_tokens") else value for name, value in body.items()}
            response = await running.client.post(path, json=wrong)
            assert response.status_code == 422
            assert "max_tokens_per" in response.json()["message"]
