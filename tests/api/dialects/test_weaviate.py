"""Weaviate's reranker-transformers module, as its Go client speaks."""

import asyncio
import json

import pytest
from support.app import assert_error, running_app
from support.dialects import RAW, SIGMOIDS, WORDS
from support.scorers import encoded_lookup, lookup

BODY = {"query": "who", "documents": WORDS, "property": ""}


async def test_scores_are_in_the_order_of_the_documents() -> None:
    """Weaviate's module finds a document by the position of its score, and sends no Content-Type."""
    async with running_app(lookup(**RAW)) as running:
        response = await running.client.post("/rerank", content=json.dumps(BODY).encode())

    assert "content-type" not in response.request.headers
    answer = response.json()
    assert [score["document"] for score in answer["scores"]] == WORDS
    assert [score["score"] for score in answer["scores"]] == pytest.approx(SIGMOIDS, rel=1e-6)
    assert (answer["query"], answer["property"]) == ("who", "")
    assert "error" not in answer  # the module takes any text there for an error


async def test_chunks_of_a_query_come_at_once() -> None:
    """Weaviate sends a hundred documents as four concurrent requests; each answer has its own documents' scores."""
    texts = [WORDS[number % 4] for number in range(100)]
    async with running_app(lookup(**RAW)) as running:

        async def chunk(start: int) -> list[float]:
            body = BODY | {"documents": texts[start : start + 32]}
            answer = (await running.client.post("/rerank", json=body)).json()
            return [score["score"] for score in answer["scores"]]

        scores = await asyncio.gather(*(chunk(start) for start in range(0, 100, 32)))

    assert [len(part) for part in scores] == [32, 32, 32, 4]
    assert [score for part in scores for score in part] == pytest.approx(SIGMOIDS * 25, rel=1e-6)


async def test_chunks_compare() -> None:
    """Weaviate sorts the hits of all chunks by their scores, so these depend on no other document: a cascade would
    leave two of a chunk's 32 to the fast scorer, and shift their scores below those of the others.
    """
    texts = ["she", *["man"] * 31]
    async with running_app(lookup(man=9.0, she=10.0), fast=encoded_lookup(man=1.0)) as running:
        answer = await running.client.post("/rerank", json=BODY | {"documents": texts})
        alone = await running.client.post("/rerank", json=BODY | {"documents": texts[:2]})

    scores = [[each["score"] for each in chunk.json()["scores"]] for chunk in (answer, alone)]
    assert scores[0][:2] == scores[1]
    assert scores[0][0] > scores[0][1]


async def test_an_error_is_a_text() -> None:
    """Weaviate's module shows the text of an error to its user."""
    async with running_app(lookup()) as running:
        message = assert_error(
            await running.client.post("/rerank", json=BODY | {"documents": []}), 422, "invalid_input"
        )

    assert "documents" in message
