"""Several queries in one request are admitted, refused and ended together."""

import asyncio
import threading
import time

import pytest
from support.scorers import Gate, WatchedScorer, encoded_lookup, lookup
from support.serving import ranked, served
from support.tasks import HANG_S, until

from bandrank.engine.tickets import Ticket
from bandrank.errors import DeadlineExceeded, InputTooLarge, Overloaded
from bandrank.settings import Settings


async def test_the_queries_of_one_request_are_admitted_together() -> None:
    """As separate requests most of the queries are refused, because they would wait too long for the others."""
    asked = [("who", ["man", "she he he he", "he man"])] * 80
    going = threading.Event()
    going.set()
    scorer = WatchedScorer(lookup(man=1.0, she=-1.0), lambda _: going.wait(HANG_S))
    impatient = Settings(device="cpu", max_batch_rows=16, patience=0.01)  # they take milliseconds
    async with served(scorer, settings=impatient) as model:
        alone = await model.rank(*asked[0])  # from here on the speed is known
        for _ in range(2):
            going.clear()  # otherwise a slow event loop might ask for no more than is scored meanwhile
            apart = [asyncio.ensure_future(model.rank(*each)) for each in asked]
            await asyncio.wait(apart, return_when=asyncio.FIRST_EXCEPTION, timeout=HANG_S)
            going.set()
            results = await asyncio.gather(*apart, return_exceptions=True)
            together = await model.rank_each(asked)

            assert any(isinstance(each, Overloaded) for each in results)
            assert [ranked(ranking) for ranking in together] == [ranked(alone)] * 80


async def test_the_queries_of_one_request_may_fill_the_room_of_their_client() -> None:
    """While no other request waits, these queries may exceed their client's share; its next request is refused."""
    gate = Gate()
    settings = Settings(device="cpu", max_waiting_rows=18)
    async with served(WatchedScorer(lookup(man=1.0), gate), settings=settings) as model:
        first = asyncio.ensure_future(model.rank("who", ["man"]))
        await asyncio.to_thread(gate.wait_for_batch)
        several = asyncio.ensure_future(model.rank_each([("who", ["man"])] * 6))
        await until(lambda: model.engine.queue.waiting_tasks == 6)
        with pytest.raises(Overloaded):
            await model.rank("who", ["man"])
        gate.let_through(7)

        assert [ranked(ranking) for ranking in (await first, *await several)] == [[(0, 1.0)]] * 7


@pytest.mark.parametrize("strategy", ["fast", "cascade"])
async def test_nothing_is_expected_behind_the_last_task(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that were expected to need encoding are cached."""
    asked = [(f"who {number}", [f"she {number}", "man", "he"]) for number in range(3)]
    left: list[float] = []
    queued = Ticket.queued

    def watched(ticket: Ticket, *work: float, scores: bool) -> None:
        queued(ticket, *work, scores=scores)
        left.append(ticket.expected_cost)

    async with served(lookup(), fast=encoded_lookup()) as model:
        await model.rank_each(asked, strategy=strategy)
        monkeypatch.setattr(Ticket, "queued", watched)
        await model.rank_each(asked, strategy=strategy)

    assert left[1] > 0
    assert left[2] == 0


async def test_several_queries_are_one_request_in_the_metrics() -> None:
    """Candidates add up; a step counts the time in which any of the queries is in it, not the sum over the queries."""
    gate = Gate()
    async with served(WatchedScorer(lookup(man=1.0), gate)) as model:
        started = time.monotonic()
        asking = asyncio.ensure_future(model.rank_each([(f"who {number}", ["man", "she"]) for number in range(20)]))
        await asyncio.to_thread(gate.wait_for_batch)
        await asyncio.sleep(0.2)
        gate.let_through(20)
        await asking
        took_s = time.monotonic() - started

    def value(name: str, **labels: str) -> float:
        return model.engine.metrics.registry.get_sample_value(f"bandrank_{name}", labels) or 0.0

    names = ["tokenize_seconds", "queue_seconds", "score_seconds"]
    assert [value(f"{name}_count") for name in names] == [1, 1, 1]
    assert all(value(f"{name}_sum") <= took_s for name in names)
    assert value("score_seconds_sum") >= 0.2
    assert (value("candidates_total"), value("stage_candidates_total", stage="accurate")) == (40, 40)
    assert (value("stages_total", stage="accurate"), value("stage_seconds_count", stage="accurate")) == (1, 1)
    assert 0.2 <= value("stage_seconds_sum", stage="accurate") <= took_s


async def test_one_query_that_fails_ends_those_of_the_same_request() -> None:
    """The room of all queries in the queue is freed, and the request raises the first error."""
    gate = Gate()
    async with served(WatchedScorer(lookup(man=1.0), gate), settings=Settings(request_timeout_s=0.05)) as model:
        with pytest.raises(DeadlineExceeded):
            await model.rank_each([("who", ["man"]), ("he", ["man"]), ("she", ["man"])])

        assert (model.engine.queue.waiting_rows, model.engine.queue.waiting_tasks) == (0, 0)
        gate.let_through(3)


async def test_what_the_queries_of_one_request_take_is_known_when_it_comes() -> None:
    """A request too large to be done in time is refused before it begins, even by a scorer that caches candidates."""
    async with served(encoded_lookup(man=1.0), settings=Settings(device="cpu", request_timeout_s=10.0)) as model:
        model.engine.queue.throughput.report(model.stages[0].scorer.lane.name, 4096, 40.96)
        with pytest.raises(InputTooLarge, match="would take"):
            await model.rank_each([(f"who {'is ' * 30}{number}", ["man"]) for number in range(100)])
