"""Small requests for large answers: ids are looked up once, and texts are bounded before they are written."""

from collections.abc import Callable, Sequence

import pytest
from support.app import RunningApp, assert_error, running_app
from support.scorers import lookup

from bandrank.engine.candidates import CandidateStore
from bandrank.settings import Settings


async def register(running: RunningApp, **texts: str) -> None:
    body = {"candidates": [{"id": name, "text": text} for name, text in texts.items()]}
    assert (await running.client.put("/candidates", json=body)).status_code == 200


async def test_an_id_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may name an id many times; each candidate with that id gets the text, or is unresolved."""
    asked: list[str] = []
    get_many = CandidateStore.get_many

    async def watch(store: CandidateStore, ids: Sequence[str], hold: Callable[[int], None]) -> list[str | None]:
        asked.extend(ids)
        return await get_many(store, ids, hold)

    monkeypatch.setattr(CandidateStore, "get_many", watch)
    candidates = [{"id": "a"}, {"id": "x"}] * 300 + [{"id": f"{number}"} for number in range(600)]
    async with running_app(lookup(man=1.0)) as running:
        await register(running, a="man", **{"599": "she"})
        answer = (await running.rerank({"query": "who", "candidates": candidates})).json()

    assert asked == ["a", "x", *map(str, range(600))]
    assert [result["index"] for result in answer["results"]] == [*range(0, 600, 2), 1199]
    assert [each["index"] for each in answer["unresolved"]] == [*range(1, 600, 2), *range(600, 1199)]


async def test_the_texts_of_ids_are_bounded() -> None:
    """The limit counts the bytes of distinct registered texts, and not the texts in the request."""
    settings = Settings(device="cpu", max_resolved_bytes=12)
    async with running_app(lookup(), settings=settings) as running:
        await register(running, a="é" * 4, b="man ", c="x")
        fits = await running.rerank({"query": "who", "candidates": [{"id": name} for name in "aabb"] + ["man" * 100]})
        beyond = await running.rerank({"query": "who", "candidates": [{"id": name} for name in "abc"]})

    assert fits.status_code == 200
    message = assert_error(beyond, 413, "input_too_large")
    assert message == "the texts of the ids are larger than 12 bytes; name fewer per request"


async def test_the_texts_of_an_answer_are_bounded() -> None:
    """The limit counts the text of each result as JSON, after `top_n`."""
    settings = Settings(device="cpu", max_answer_bytes=100)
    async with running_app(lookup(), settings=settings) as running:
        await register(running, a="\n" * 24)  # 50 bytes as JSON
        body = {"query": "who", "candidates": [{"id": "a"}] * 3, "return_documents": True}
        two = await running.rerank(body | {"top_n": 2})
        three = await running.rerank(body)
        none = await running.rerank(body | {"return_documents": False})

    assert len(two.json()["results"]) == 2
    message = assert_error(three, 413, "input_too_large")
    assert message.startswith("the texts of the results are larger than 100 bytes; ask for fewer with top_n")
    assert len(none.json()["results"]) == 3
