"""The memory budget for requests in flight: it is reserved before it is spent, given back at the end, and shared."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from support.app import assert_error, running_app
from support.scorers import lookup

from bandrank.engine.clients import Client
from bandrank.engine.memory import Memory
from bandrank.errors import InputTooLarge, Overloaded
from bandrank.metrics import Metrics
from bandrank.settings import Settings

JSON = {"content-type": "application/json"}
ONE, OTHER = Client("one"), Client("other")


def test_an_account_gives_back_all_that_it_holds() -> None:
    """An account also gives back what it held when it was refused more."""
    memory = Memory(100, Metrics())
    with pytest.raises(Overloaded), memory.account(ONE) as first, memory.account(ONE) as second:  # noqa: PT012
        first.hold(30)
        second.hold(15)
        second.hold(15)
    with memory.account(ONE) as account:
        account.hold(50)


def test_who_holds_much_leaves_some_to_others() -> None:
    """A client may hold half of the budget at most, and another client a part of the rest."""
    memory = Memory(100, Metrics())
    with memory.account(ONE) as greedy, memory.account(OTHER) as polite:
        greedy.hold(50)
        with pytest.raises(InputTooLarge):
            greedy.hold(1)
        polite.hold(25)
        with memory.account(OTHER) as another, pytest.raises(Overloaded):
            another.hold(1)


async def body_in_parts(body: bytes, wait: asyncio.Event) -> AsyncIterator[bytes]:
    """Yields a body but for its last byte, and that byte once the event is set."""
    yield body[:-1]
    await wait.wait()
    yield body[-1:]


async def test_a_body_counts_from_its_first_byte_to_its_answer() -> None:
    """While a body is arriving, another one of the same client is refused; once it is answered there is room again."""
    body = json.dumps({"query": "who", "candidates": ["man " * 5000]}).encode()
    settings = Settings(device="cpu", max_in_flight_bytes=8 * len(body))
    async with running_app(lookup(), settings=settings) as running:
        wait = asyncio.Event()
        slow = asyncio.ensure_future(running.client.post("/rerank", content=body_in_parts(body, wait), headers=JSON))
        while not (await running.scrape()).value("bandrank_memory_in_flight_bytes"):  # noqa: ASYNC110  # no event says so
            await asyncio.sleep(0.001)
        refused = await running.client.post("/rerank", content=body, headers=JSON)
        wait.set()
        answered = await slow
        again = await running.client.post("/rerank", content=body, headers=JSON)
        left = (await running.scrape()).value("bandrank_memory_in_flight_bytes")

    assert "memory" in assert_error(refused, 429, "overloaded")
    assert refused.headers["retry-after"] == "1"
    assert (answered.status_code, again.status_code, left) == (200, 200, 0)


async def test_a_body_that_can_never_be_held_is_too_large() -> None:
    """The error is a 413 and not a 429, because to try again would be in vain."""
    body = json.dumps({"query": "who", "candidates": ["man " * 5000]}).encode()
    settings = Settings(device="cpu", max_in_flight_bytes=5 * len(body))
    async with running_app(lookup(), settings=settings) as running:
        assert_error(await running.client.post("/rerank", content=body, headers=JSON), 413, "input_too_large")


async def test_texts_of_ids_and_of_answers_count() -> None:
    """A small body may name large texts, and ask for them in the answer."""
    settings = Settings(device="cpu", max_in_flight_bytes=200_000)
    async with running_app(lookup(), settings=settings) as running:
        put = {"candidates": [{"id": "large", "text": "man " * 8_000}]}
        registered = await running.client.put("/candidates", json=put)
        asked = {"query": "who", "candidates": [{"id": "large"}]}
        ranked = await running.rerank(asked)
        returned = await running.rerank(asked | {"return_documents": True})

    assert (registered.status_code, ranked.status_code) == (200, 200)
    assert_error(returned, 413, "input_too_large")
