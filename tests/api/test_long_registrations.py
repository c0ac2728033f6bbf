"""Long registrations end with their client or with the service, and only their own errors tell their progress."""

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.app import RunningApp, ask_and_hang_up, assert_error, running_app
from support.models import random_text, tiny_bi_encoder
from support.tasks import until

from bandrank.engine.cache.representations import RepresentationCache
from bandrank.settings import Settings

RNG = random.Random(0)
CANDIDATES = [{"id": str(number), "text": f"{random_text(RNG, 20)} {number}"} for number in range(400)]
LINES = "application/x-ndjson"


@asynccontextmanager
async def slow_app(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RunningApp, Callable[[], int]]]:
    """A service that takes seconds to encode CANDIDATES, and a function that counts the parts that it has begun."""
    begun = 0
    compute_missing = RepresentationCache.compute_missing

    async def slowly(*args: Any, **kwargs: Any) -> dict[bytes, bytes]:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0.05)
        return await compute_missing(*args, **kwargs)

    monkeypatch.setattr(RepresentationCache, "compute_missing", slowly)
    monkeypatch.setattr("bandrank.engine.representation_source.ROWS_AT_ONCE", 64)
    async with running_app(tiny_bi_encoder(), settings=Settings(device="cpu")) as running:
        yield running, lambda: begun


async def test_a_registration_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a registration that have not begun when the client hangs up never do."""
    async with slow_app(monkeypatch) as (running, begun):
        message = {"type": "http.request", "body": json.dumps({"candidates": CANDIDATES}).encode()}

        async def hung_up() -> None:
            await until(lambda: begun() > 1)

        await ask_and_hang_up(running.app, [message], hung_up=hung_up, path="/candidates", method="PUT")
        ended = begun()
        await asyncio.sleep(0.2)

    assert 1 < ended == begun() < 20


async def test_a_registration_ends_with_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registration ends between two parts, and its error says what to do."""
    async with slow_app(monkeypatch) as (running, begun):
        asking = asyncio.create_task(running.client.put("/candidates", json={"candidates": CANDIDATES}))
        await until(lambda: begun() > 1)
        running.service.stop()
        message = assert_error(await asking, 503, "not_ready")

    assert message == "the service is stopping; try another replica"
    assert begun() < 20


async def test_the_progress_of_a_stream_is_in_no_other_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams and a ranking wait for one computation, which fails; only the streams are told what is registered."""
    async with running_app(tiny_bi_encoder(), settings=Settings(device="cpu")) as running:
        source: Any = running.service.models.default.stages[0].scorer.source

        choking = threading.Event()

        def choke(_: object) -> None:
            choking.set()
            time.sleep(0.3)  # until the others have joined
            raise RuntimeError("choked")

        monkeypatch.setattr(source.encode_lane, "begin", choke)
        line = b'{"id": "a", "text": "man"}'
        first, second = (
            asyncio.create_task(running.client.put("/candidates", content=body, headers={"content-type": LINES}))
            for body in (b"no json\n" + line, line)
        )
        await until(choking.is_set)
        ranking = await running.rerank({"query": "who", "candidates": ["man"]})
        told = [assert_error(answer, 500, "scoring_failed") for answer in (ranking, await first, await second)]

    assert told[0] == "scoring failed: RuntimeError"
    assert told[1:] == [f"{told[0]} (the first 0 lines are registered)"] * 2
