"""A shadow model behind the real application: it scores what was answered, and no client notices it."""

import asyncio

import pytest
from fastapi import FastAPI
from support.app import RunningApp, assert_error, running_app
from support.poison import fails
from support.scorers import Gate, WatchedScorer, encoded_lookup, lookup
from support.stderr import logging_to_stderr
from support.tasks import HANG_S, until

from bandrank.api import service as service_module
from bandrank.engine.shadow import is_sampled
from bandrank.errors import ScoringFailed
from bandrank.models.batch import ScoreBatch
from bandrank.settings import Settings

BODY = {"query": "who", "candidates": ["man", {"id": "she", "text": "she"}, "you", {"id": "unknown"}], "top_n": 1}
ALL = Settings(device="cpu", shadow_share=1.0)
LABELS = {"model": "tiny", "shadow": "shadow"}


class Broken(WatchedScorer):
    """A scorer that fails once the test sets `broken`."""

    def __init__(self) -> None:
        super().__init__(lookup(man=1.0), self._check)
        self.broken = False

    def _check(self, _: ScoreBatch) -> None:
        if self.broken:
            raise RuntimeError("broken")


async def nothing_pends(running: RunningApp) -> None:
    """Waits until the shadow has scored what it was offered."""
    sample = running.service.metrics.registry.get_sample_value
    await until(lambda: sample("bandrank_shadow_pending") == 0)


async def test_an_answer_is_compared_when_it_has_been_sent() -> None:
    """All candidates with a text are compared, even those that `top_n` leaves out of the answer."""
    shadow = lookup(man=1.0, she=2.0, you=3.0)
    async with running_app(lookup(man=3.0, she=2.0, you=1.0), shadow=shadow, settings=ALL) as running:
        before = await running.scrape()
        response = await running.rerank(BODY)
        await nothing_pends(running)
        after = await running.scrape()

    assert [result["index"] for result in response.json()["results"]] == [0]
    for name in ("sampled_total", "scored_total", "failed_total", "dropped_total", "kendall_tau_count"):
        assert before.value(f"bandrank_shadow_{name}", **LABELS) == 0
    assert after.value("bandrank_shadow_scored_total", **LABELS) == 1
    assert after.value("bandrank_shadow_kendall_tau_bucket", le="-0.5", **LABELS) == 1
    assert after.value("bandrank_shadow_overlap_count", k="1", **LABELS) == 1
    assert after.value("bandrank_memory_in_flight_bytes") == 0


async def test_an_answer_does_not_wait_for_its_shadow() -> None:
    """The answer comes and counts as given while the shadow's batch is held; a stop drops what is pending."""
    gate = Gate()
    gate.let_through()  # for the self-test of the start
    async with running_app(lookup(man=1.0), shadow=WatchedScorer(lookup(), gate), settings=ALL) as running:
        await asyncio.to_thread(gate.wait_for_batch)
        response = await asyncio.wait_for(running.rerank(BODY), HANG_S)
        await asyncio.to_thread(gate.wait_for_batch)
        pending = (await running.scrape()).value("bandrank_shadow_pending")
        [busy] = (await running.client.get("/infinity/models")).json()["data"]
        asyncio.get_running_loop().call_later(0.1, gate.let_through)  # the thread ends with its batch
    dropped = running.service.metrics.shadow_dropped.labels(*LABELS.values(), "stopping")

    assert (response.status_code, pending, busy["stats"]["results_pending"]) == (200, 1, 0)
    assert [sample.value for metric in dropped.collect() for sample in metric.samples if "_total" in sample.name] == [1]


async def test_requests_are_sampled_by_their_ids() -> None:
    """All replicas sample the same requests; a refused request is no sample."""
    settings = Settings(device="cpu", shadow_share=0.5)
    ids = [f"request-{number}" for number in range(20)]
    async with running_app(lookup(man=1.0), shadow=lookup(man=1.0), settings=settings) as running:
        for name in ids:
            await running.client.post("/rerank", json=BODY, headers={"X-Request-Id": name})
            assert_error(
                await running.client.post("/rerank", json={"query": "who"}, headers={"X-Request-Id": name}),
                422,
                "invalid_input",
            )
        sampled = (await running.scrape()).value("bandrank_shadow_sampled_total")

    assert 0 < sampled == sum(is_sampled(name, 0.5) for name in ids) < len(ids)


async def test_a_model_that_is_loaded_as_a_shadow_alone_is_not_served() -> None:
    """No request can name the shadow, and no registered candidate is encoded for it."""
    async with running_app(lookup(man=1.0), shadow=encoded_lookup(man=1.0), settings=ALL) as running:
        listed = (await running.client.get("/v1/models")).json()["data"]
        put = await running.client.put("/candidates", json={"candidates": [{"id": "a", "text": "man"}]})

        assert [model["id"] for model in listed] == ["tiny"]
        assert put.json()["encoded"] == 0
        assert_error(await running.rerank(BODY | {"model": "shadow"}), 404, "unknown_model")


async def test_a_shadow_that_breaks_breaks_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "FRESH_S", -1.0)  # so that each probe is a self-test
    shadow = Broken()
    async with running_app(encoded_lookup(man=1.0), shadow=shadow, settings=ALL) as running:
        shadow.broken = True
        put = await running.client.put("/candidates", json={"candidates": [{"id": "a", "text": "man"}]})
        statuses = [(await running.rerank(BODY)).status_code for _ in range(3)]
        await nothing_pends(running)
        scrape = await running.scrape()
        ready = await running.client.get("/readyz")

    assert (put.status_code, statuses, ready.status_code) == (200, [200] * 3, 200)
    assert scrape.value("bandrank_shadow_failed_total", **LABELS) == 3
    assert scrape.value("bandrank_requests_total", status="500") == 0


async def test_the_log_names_the_request_that_a_shadow_could_not_score(capsys: pytest.CaptureFixture[str]) -> None:
    """The line has the ids of this request, although its sample waited behind another one."""
    gate = Gate()
    gate.let_through()  # for the self-test of the start

    def watch(batch: ScoreBatch) -> None:
        gate(batch)
        fails(batch)

    async with running_app(lookup(), shadow=WatchedScorer(lookup(), watch), settings=ALL) as running:
        await asyncio.to_thread(gate.wait_for_batch)
        with logging_to_stderr():
            for number, text in enumerate(("man", "p")):
                trace = f"00-{number + 1:032x}-{1:016x}-01"
                headers = {"X-Request-Id": f"request-{number}", "traceparent": trace}
                await running.client.post("/rerank", json={"query": "who", "candidates": [text]}, headers=headers)
            gate.let_through(2)
            await nothing_pends(running)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "the shadow failed" in line]

    assert line.endswith(f" request_id=request-1 trace_id={2:032x}")


async def test_a_shadow_that_cannot_score_is_noticed_at_the_start() -> None:
    """As with any other model that cannot score, the service does not start."""
    shadow = Broken()
    shadow.broken = True
    async with running_app(lookup(man=1.0), shadow=shadow, settings=ALL, started=False) as running:
        app: FastAPI = running.app
        with pytest.raises(ScoringFailed):
            await app.router.lifespan_context(app).__aenter__()
