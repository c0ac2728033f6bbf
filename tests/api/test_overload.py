"""What a client hears when its request cannot be answered, and that the reason is counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Message
from support.app import RunningApp, ask_and_hang_up, assert_error, client_to, running_app
from support.poison import dies, fails
from support.scorers import Gate, WatchedScorer, lookup
from support.server import Scrape
from support.tasks import until

from bandrank.api import service as service_module
from bandrank.engine.task_queue import STOPPING
from bandrank.settings import Settings

pytestmark = pytest.mark.anyio

BODY = {"query": "who", "candidates": ["man"]}
POISONED = {"query": "who", "candidates": ["p"]}
BYTES = b'{"query": "who", "candidates": ["man"]}'


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
    """Retry-After is a whole number of seconds of at least one, and the admitted requests are answered."""
    scorer, gate = gated()
    large = {"query": "who", "candidates": ["man " + "he " * count for count in range(9)]}  # 54 rows
    async with running_app(scorer, settings=Settings(device="cpu", max_waiting_rows=100)) as running:
        await asyncio.to_thread(gate.wait_for_batch)
        admitted = await held(running, gate, large)
        refused = await running.rerank(large)
        gate.let_through(2)

        assert_error(refused, 429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
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

    class Buggy(WatchedScorer):
        def num_rows(self, query_tokens: int, candidate_tokens: int) -> int:
            if candidate_tokens == 13:
                raise RuntimeError("secret")
            return super().num_rows(query_tokens, candidate_tokens)

    async with running_app(Buggy(lookup(), lambda _: None)) as running:
        response = await running.rerank({"query": "who", "candidates": ["the man " * 6]})

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


async def test_a_queued_client_that_hangs_up_frees_its_room() -> None:
    """The client counts as 499 and its task as cancelled; the request that is being scored is answered."""
    scorer, gate = gated()
    async with running_app(scorer) as running:
        await asyncio.to_thread(gate.wait_for_batch)
        scored, gone = asyncio.create_task(running.rerank(BODY)), asyncio.Event()
        await asyncio.to_thread(gate.wait_for_batch)
        message: Message = {"type": "http.request", "body": BYTES, "more_body": False}
        impatient = asyncio.create_task(ask_and_hang_up(running.app, [message], hung_up=gone.wait))
        queue = running.service.models.default.engine.queue
        await until(lambda: queue.waiting_tasks == 1)
        gone.set()
        sent = await impatient
        await until(lambda: queue.waiting_tasks == 0)
        seen = await running.scrape()
        gate.let_through()

        assert {message["status"] for message in sent if "status" in message} <= {499}
        assert queue.waiting_rows == 0
        assert seen.value("bandrank_requests_total", status="499") == 1
        assert seen.value("bandrank_request_seconds_count") == 1
        assert seen.value("bandrank_dropped_tasks_total", reason="cancelled") == 1
        assert seen.value("bandrank_waiting_tokens") == 0
        assert (await scored).status_code == 200


async def test_a_client_that_hangs_up_within_its_body_is_no_error() -> None:
    async with running_app(lookup()) as running:
        half: Message = {"type": "http.request", "body": BYTES[:20], "more_body": True}
        gone = asyncio.Event()
        gone.set()
        sent = await ask_and_hang_up(running.app, [half], hung_up=gone.wait)
        seen = await running.scrape()

        assert {message["status"] for message in sent if "status" in message} <= {499}
        assert seen.value("bandrank_requests_total", status="499") == 1
        assert seen.value("bandrank_requests_total") == 1
        assert (await running.rerank(BODY)).status_code == 200
