"""What a client hears when its request cannot be answered, and that the reason is counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from support.app import RunningApp, assert_error, client_to, running_app
from support.poison import BUG, Buggy, dies, fails
from support.scorers import Gate, WatchedScorer, lookup
from support.server import Scrape
from support.tasks import until

from bandrank.api import service as service_module
from bandrank.engine.task_queue import STOPPING
from bandrank.settings import Settings

BODY = {"query": "who", "candidates": ["man"]}
POISONED = {"query": "who", "candidates": ["p"]}


async def counted(running: RunningApp, status: str) -> float:
    """The number of requests with this status."""
    return (await running.scrape()).value("bandrank_requests_total", status=status)


async def timed(running: RunningApp) -> float:
    """The number of requests in the histogram of their times."""
    return (await running.scrape()).value("bandrank_request_seconds_count")


async def held(
    running: RunningApp, gate: Gate, waiting: dict[str, Any] | None = None
) -> list[asyncio.Task[httpx.Response]]:
    """Two requests: one that is being scored, and one that waits, which may have a body of its own."""
    requests = [asyncio.create_task(running.rerank(BODY))]
    await asyncio.to_thread(gate.wait_for_batch)
    requests.append(asyncio.create_task(running.rerank(waiting or BODY)))
    await until(lambda: running.service.models.default.engine.queue.waiting_tasks == 1)
    return requests


def gated() -> tuple[WatchedScorer, Gate]:
    """A scorer behind a gate that has let the self-test at the start pass."""
    gate = Gate()
    gate.let_through()
    return WatchedScorer(lookup(man=1.0), gate), gate


async def test_a_full_queue_is_429_with_a_retry_time() -> None:
    """Retry-After is a whole number of seconds of at least one, which the message says too, and the admitted requests
    are answered.
    """
    scorer, gate = gated()
    large = {"query": "who", "candidates": ["man " + "he " * count for count in range(9)]}  # 54 rows
    async with running_app(scorer, settings=Settings(device="cpu", max_waiting_rows=100)) as running:
        await asyncio.to_thread(gate.wait_for_batch)
        admitted = await held(running, gate, large)
        refused = await running.rerank(large)
        gate.let_through(2)

        seconds = int(refused.headers["retry-after"])
        assert seconds >= 1
        assert assert_error(refused, 429, "overloaded").endswith(f"; try again in {seconds} s")
        assert [(await request).status_code for request in admitted] == [200, 200]
        assert await counted(running, "429") == 1
        assert await timed(running) == 2  # an overload must not make the service seem fast


async def test_a_late_answer_is_504() -> None:
    """The answer comes when the time is up, not when the scorer is free."""
    gate = Gate()
    settings = Settings(device="cpu", request_timeout_s=0.1)
    async with running_app(WatchedScorer(lookup(), gate), settings=settings, started=False) as running:
        late = await running.rerank(BODY)
        gate.let_through()

        assert_error(late, 504, "deadline_exceeded")
        assert await counted(running, "504") == 1
        assert await timed(running) == 1


async def test_a_candidate_that_cannot_be_scored_is_500_for_its_request_alone() -> None:
    """A good request that is sent at the same time is answered."""
    async with running_app(WatchedScorer(lookup(man=1.0), fails)) as running:
        poisoned, good = await asyncio.gather(running.rerank(POISONED), running.rerank(BODY))

        assert_error(poisoned, 500, "scoring_failed")
        assert "choked" not in poisoned.text
        assert good.status_code == 200
        assert (await counted(running, "500"), await counted(running, "200")) == (1, 1)


async def test_a_bug_is_500_and_counted_as_such() -> None:
    """The flat body leaves out the cause, which goes to the log."""
    async with running_app(Buggy(lookup(), lambda _: None)) as running:
        response = await running.rerank(BUG)

        assert_error(response, 500, "internal")
        assert "secret" not in response.text
        assert (await counted(running, "500"), await counted(running, "499")) == (1, 0)
        assert (await running.rerank(BODY)).status_code == 200


async def test_a_service_that_stops_is_503() -> None:
    """A stopped service refuses requests, but its /healthz and /metrics are answered until the process ends."""
    async with running_app(lookup()) as running:
        pass
    async with client_to(running.app) as client:
        assert_error(await client.post("/rerank", json=BODY), 503, "not_ready")
        assert_error(await client.get("/readyz"), 503, "not_ready")
        assert (await client.get("/healthz")).status_code == 200
        seen = Scrape((await client.get("/metrics")).text)
    assert seen.value("bandrank_requests_total", status="503") == 1
    assert seen.value("bandrank_request_seconds_count") == 0


@asynccontextmanager
async def being_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[RunningApp, Gate, asyncio.Task[str | None]]]:
    """A service, the gate that holds the batch of its self-test, and the task of a probe that waits for this test."""
    monkeypatch.setattr(service_module, "FRESH_S", -1.0)  # as if nothing had been scored a moment ago
    scorer, gate = gated()
    async with running_app(scorer) as running:
        await asyncio.to_thread(gate.wait_for_batch)
        probing = asyncio.create_task(running.service.why_not_ready())
        await asyncio.to_thread(gate.wait_for_batch)
        yield running, gate, probing


async def test_probes_of_an_idle_service_share_a_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many probes at once do not overload the service, and it does not matter to the others if the first hangs up."""
    async with being_tested(monkeypatch) as (running, gate, first):
        others = [asyncio.create_task(running.service.why_not_ready()) for _ in range(200)]
        await asyncio.sleep(0)
        first.cancel()
        gate.let_through(300)

        assert await asyncio.gather(*others) == [None] * 200
        assert first.cancelled()
        assert (await running.scrape()).value("bandrank_batch_tasks_sum") == 2  # the start's self-test, and one


async def test_a_probe_that_waits_hears_that_the_service_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe hears that the service stops even if its self-test, which began earlier, succeeds."""
    async with being_tested(monkeypatch) as (running, gate, probing):
        running.service.drain()
        gate.let_through()

        assert await probing == STOPPING
        assert (await running.scrape()).value("bandrank_ready") == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_dead_scoring_thread_makes_the_service_unready() -> None:
    """Requests that are being scored fail, later ones are refused, `on_death` is called, and probes get errors."""
    deaths: list[str] = []
    scorer = WatchedScorer(lookup(), dies)
    async with running_app(scorer, on_death=lambda: deaths.append("died")) as running:
        assert (await running.client.get("/readyz")).status_code == 200
        assert_error(await running.rerank(POISONED), 500, "scoring_failed")
        await asyncio.to_thread(running.service.models.default.engine.worker.join)

        assert_error(await running.rerank(BODY), 500, "scoring_failed")
        assert "dead" in assert_error(await running.client.get("/readyz"), 503, "not_ready")
        assert (await running.scrape()).value("bandrank_ready") == 0
        assert "dead" in assert_error(await running.client.get("/healthz"), 503, "not_ready")
        assert deaths == ["died"]
