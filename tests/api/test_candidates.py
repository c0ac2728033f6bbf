"""Registering candidates, and re-ranking them by id alone."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.app import RunningApp, assert_error, running_app
from support.scorers import encoded_lookup, lookup

from bandrank.settings import Settings

TEXTS = {"a": "man", "b": "she", "c": "you"}


def app() -> Any:
    """An application whose scorer precomputes: man 3, she 2, anything else 0."""
    return running_app(encoded_lookup(man=3.0, she=2.0))


async def register(running: RunningApp, texts: dict[str, str]) -> dict[str, Any]:
    """Registers texts by id and returns the answer."""
    body = {"candidates": [{"id": name, "text": text} for name, text in texts.items()]}
    response = await running.client.put("/candidates", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def rerank(running: RunningApp, candidates: list[Any], **fields: Any) -> dict[str, Any]:
    """Returns the answer to a request, which must have status 200."""
    response = await running.rerank({"query": "who", "candidates": candidates, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_registered_candidates_are_ranked_by_id_alone() -> None:
    """The candidates are encoded at registration, so the request finds all of them in the cache."""
    async with app() as running:
        registered = await register(running, TEXTS)
        answer = await rerank(running, [{"id": name} for name in "cba"], return_documents=True)

    assert registered == {"registered": 3, "encoded": 3, "num_errors": 0, "errors": []}
    assert [(r["index"], r["id"], r["document"]["text"]) for r in answer["results"]] == [
        (2, "a", "man"),
        (1, "b", "she"),
        (0, "c", "you"),
    ]
    assert answer["meta"]["stages"][0]["cache_hits"] == 3
    assert "unresolved" not in answer


async def test_an_unknown_id_is_reported_and_the_rest_is_ranked() -> None:
    """The answer reports an unknown id by its index in the request; the other candidates keep their indices."""
    async with app() as running:
        await register(running, TEXTS)
        answer = await rerank(running, [{"id": "x"}, {"id": "b"}, "man", {"id": "y"}, {"id": "own", "text": "you"}])

    assert [result["index"] for result in answer["results"]] == [2, 1, 4]
    assert [(item["index"], item["id"]) for item in answer["unresolved"]] == [(0, "x"), (3, "y")]


async def test_a_text_in_the_request_goes_before_the_registered_one() -> None:
    """The text of the request is scored, and the registered one is not replaced."""
    async with app() as running:
        await register(running, {"a": "man"})
        other = await rerank(running, [{"id": "a", "text": "she"}], raw_scores=True)
        registered = await rerank(running, [{"id": "a"}], raw_scores=True)

    assert other["results"][0]["relevance_score"] == 2.0
    assert registered["results"][0]["relevance_score"] == 3.0


async def test_an_id_that_is_registered_again_has_the_new_text() -> None:
    """Within one upload, too, the last text of an id counts."""
    async with app() as running:
        await register(running, {"a": "man"})
        body = {"candidates": [{"id": "a", "text": "you"}, {"id": "a", "text": "she"}]}
        answer = (await running.client.put("/candidates", json=body)).json()
        ranked = await rerank(running, [{"id": "a"}], raw_scores=True)

    assert (answer["registered"], answer["encoded"]) == (1, 1)
    assert ranked["results"][0]["relevance_score"] == 2.0


async def test_deleted_candidates_are_unknown() -> None:
    """The answer counts the deleted ids that were registered."""
    async with app() as running:
        await register(running, TEXTS)
        response = await running.client.request("DELETE", "/candidates", json={"ids": ["a", "b", "a", "x"]})
        answer = await rerank(running, [{"id": "a"}, {"id": "c"}])

    assert response.json() == {"deleted": 2}
    assert [item["id"] for item in answer["unresolved"]] == ["a"]


async def test_a_stream_of_lines_is_registered() -> None:
    """Lines may be split anywhere; blank ones are skipped, bad ones reported by number, and an id counts once."""
    lines = [json.dumps({"id": str(number), "text": "man"}) for number in range(600)]
    lines[3:3] = ["", "no json", json.dumps({"id": "x"}), lines[0]]
    body = "\n".join(lines).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 777):
            yield body[start : start + 777]

    async with app() as running:
        response = await running.client.put(
            "/candidates", content=pieces(), headers={"content-type": "application/x-ndjson"}
        )
        answer = await rerank(running, [{"id": "0"}, {"id": "599"}])

    registered = response.json()
    assert (registered["registered"], registered["encoded"], registered["num_errors"]) == (600, 1, 2)
    assert [error["line"] for error in registered["errors"]] == [5, 6]
    assert len(answer["results"]) == 2


@pytest.mark.parametrize("lines", [False, True])
async def test_a_line_of_a_corpus_is_registered_as_precompute_reads_it(lines: bool) -> None:
    """`_id` may stand for `id`, which counts if both are there, and a title is put before the text."""
    documents: list[dict[str, Any]] = [
        {"_id": "a", "title": "she", "text": "man"},
        {"_id": "b", "title": "", "text": "man"},
        {"_id": "other", "id": "c", "title": None, "text": "you"},
    ]
    body: dict[str, Any] = {"json": {"candidates": documents}}
    if lines:
        body = {"content": "\n".join(map(json.dumps, documents)), "headers": {"content-type": "application/jsonl"}}
    async with app() as running:
        registered = (await running.client.put("/candidates", **body)).json()
        answer = await rerank(running, [{"id": name} for name in ("a", "b", "c", "other")], return_documents=True)

    assert (registered["registered"], registered["num_errors"]) == (3, 0)
    assert {each["id"]: each["document"]["text"] for each in answer["results"]} == {
        "a": "she man",
        "b": "man",
        "c": "you",
    }
    assert [each["id"] for each in answer["unresolved"]] == ["other"]


async def test_a_service_that_does_not_precompute_registers_too() -> None:
    """The texts are kept for the cross-encoder, and nothing is encoded."""
    async with running_app(lookup(man=3.0)) as running:
        registered = await register(running, TEXTS)
        answer = await rerank(running, [{"id": "b"}, {"id": "a"}])

    assert (registered["registered"], registered["encoded"]) == (3, 0)
    assert [result["id"] for result in answer["results"]] == ["a", "b"]


async def test_a_full_store_refuses_texts_and_keeps_its_content() -> None:
    """Without Redis the store is bounded in bytes; replacing a text by a shorter one makes room."""
    settings = Settings(device="cpu", candidate_store_bytes=800)
    async with running_app(encoded_lookup(man=3.0), settings=settings) as running:
        await register(running, {"a": "man " * 100})
        response = await running.client.put("/candidates", json={"candidates": [{"id": "b", "text": "she " * 100}]})
        message = assert_error(response, 507, "store_full")
        await register(running, {"a": "man"})
        await register(running, {"b": "she " * 100})
        answer = await rerank(running, [{"id": "b"}, {"id": "a"}])

    assert "the setting redis_url or candidate_store_bytes" in message
    assert [result["id"] for result in answer["results"]] == ["a", "b"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"no json", b"{}", b'{"candidates": [{"id": "", "text": "man"}]}', b'{"candidates": [{"id": "a"}]}'),
        *(b'{"candidates": [{"id": 7, "text": "man"}]}', rb'{"candidates": [{"id": "\ud800", "text": "man"}]}'),
    ],
)
async def test_a_bad_upload_is_refused(body: bytes) -> None:
    async with app() as running:
        assert_error(await running.client.put("/candidates", content=body), 422, "invalid_input")


async def test_a_text_in_a_body_is_bounded_like_one_in_a_line() -> None:
    """The limit is in bytes, whatever the script, and a request beyond it registers nothing."""
    settings = Settings(device="cpu", max_line_bytes=100)
    async with running_app(lookup(), settings=settings) as running:
        for text in ("x" * 101, "\u4e2d" * 34):
            put = {"candidates": [{"id": "small", "text": "man"}, {"id": "large", "text": text}]}
            message = assert_error(await running.client.put("/candidates", json=put), 413, "input_too_large")
            assert "100 bytes" in message
        unknown = await running.rerank({"query": "who", "candidates": [{"id": "small"}]})
        fits = {"candidates": [{"id": "fits", "text": "\u4e2d" * 33}]}

        assert_error(unknown, 404, "unknown_candidates")
        assert (await running.client.put("/candidates", json=fits)).status_code == 200
