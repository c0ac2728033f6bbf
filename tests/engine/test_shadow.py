"""A shadow model: what it measures, and that it never affects a request, whatever goes wrong."""

import asyncio

import pytest
import torch
from support.models import tiny_cross_encoder
from support.scorers import Gate, WatchedScorer, encoded_lookup, lookup
from support.shadowing import shadowed
from support.tasks import until

from bandrank.engine.clients import Client
from bandrank.engine.shadow import MAX_PENDING, is_sampled
from bandrank.errors import Overloaded
from bandrank.models.batch import ScoreBatch
from bandrank.models.scorer import Scorer
from bandrank.settings import Settings

WORDS = ["man", "she", "you", "he", "no", "is"]
SCORES = {word: float(rank) for rank, word in enumerate(WORDS)}
REVERSED = {word: -score for word, score in SCORES.items()}


def failing(error: Exception) -> WatchedScorer:
    def fail(_: ScoreBatch) -> None:
        raise error

    return WatchedScorer(lookup(**SCORES), fail)


@pytest.mark.parametrize("make", [lambda: lookup(**SCORES), lambda: tiny_cross_encoder(seed=1)])
async def test_a_model_agrees_with_itself(make: type[Scorer]) -> None:
    async with shadowed(make(), make()) as running:
        await running.ask(WORDS)
        await running.done()

        assert running.value("shadow_kendall_tau_count") == running.value("shadow_kendall_tau_bucket", le="1.0") == 1
        assert running.value("shadow_kendall_tau_bucket", le="0.99") == 0
        assert [running.value("shadow_overlap_sum", k=k) for k in "15"] == [1.0, 1.0]
        assert running.value("shadow_score_drift_bucket", le="0.001") == 1
        assert (running.value("shadow_sampled_total"), running.value("shadow_scored_total")) == (1, 1)


async def test_a_model_disagrees_with_its_reverse() -> None:
    """Drift and shift are measured on sigmoids of the scores."""
    async with shadowed(lookup(**SCORES), lookup(**REVERSED)) as running:
        await running.ask(WORDS)
        await running.done()

        assert running.value("shadow_kendall_tau_bucket", le="-0.5") == 1
        assert [running.value("shadow_overlap_sum", k=k) for k in "15"] == [0.0, 0.8]
        expected = sum(torch.tensor(list(SCORES.values())).sigmoid().tolist()) / len(SCORES) * 2 - 1
        assert running.value("shadow_score_drift_sum") == pytest.approx(expected, abs=1e-6)
        assert running.value("shadow_score_shift_bucket", le="-0.5") == 1
        assert running.value("shadow_score_shift_bucket", le="-0.2") == 1


async def test_every_series_starts_at_0() -> None:
    """Every series exists before the first request, and cutoffs that include every candidate are never observed."""
    async with shadowed(lookup(**SCORES), lookup(**SCORES)) as running:
        names = ["sampled_total", "scored_total", "failed_total", "pending", "rows_total"]
        names += [f"{name}_count" for name in ("kendall_tau", "score_drift", "score_shift")]
        assert [running.value(f"shadow_{name}") for name in names] == [0] * len(names)
        assert running.dropped() == {}
        await running.ask(WORDS[:5])
        await running.done()

        assert [running.value("shadow_overlap_count", k=k) for k in ("1", "5", "10")] == [1, 0, 0]


async def test_shadow_work_is_not_counted_with_requests() -> None:
    """The shadow's rows, candidates and cache hits or misses stay out of the metrics of requests."""
    async with shadowed(lookup(**SCORES), encoded_lookup(**SCORES)) as running:
        await running.ask(WORDS)
        requests = running.value("batch_tokens_sum")
        await running.done()

        assert running.value("batch_tokens_sum") == requests
        assert running.value("batch_tasks_count") == running.value("batch_tokens_count") == 1
        assert (running.value("candidates_total"), running.value("shadow_rows_total") > 0) == (len(WORDS), True)
        assert running.value("cache_candidates_total", outcome="miss") == 0
        assert running.value("cache_lookups_total", tier="memory", outcome="miss") == len(WORDS)


async def test_a_stage_shadows_the_others_of_its_model() -> None:
    """The shadow uses its own strategy if it has one, and otherwise that of the request."""
    both = {"scorer": lookup(**SCORES), "fast": encoded_lookup(**REVERSED)}
    async with shadowed(**both, shadow=lookup(**SCORES), strategy="accurate") as running:
        await running.ask(WORDS, strategy="fast")
        await running.done()

        assert running.shadow.name == "shadow:accurate"
        assert running.value("shadow_kendall_tau_bucket", le="-0.5") == 1
    async with shadowed(**both, shadow=lookup(**SCORES)) as running:
        await running.ask(WORDS, strategy="accurate")
        await running.done()
        await running.ask(WORDS, strategy="fast")  # a strategy that the shadow does not have
        await running.done()

        assert (running.value("shadow_scored_total"), running.value("shadow_failed_total")) == (1, 1)


async def test_only_a_share_is_sampled() -> None:
    """The sample of a larger share contains that of every smaller one."""
    async with shadowed(lookup(**SCORES), lookup(**SCORES), share=0.0) as running:
        await running.ask(WORDS)

        assert (running.value("shadow_sampled_total"), running.value("shadow_pending")) == (0, 0)
    sampled = {share: {n for n in range(4000) if is_sampled(f"id-{n}", share)} for share in (0.0, 0.01, 0.25, 1.0)}
    assert sampled[0.0] < sampled[0.01] < sampled[0.25] < sampled[1.0] == set(range(4000))
    assert len(sampled[0.25]) == pytest.approx(1000, rel=0.1)


async def test_a_strategy_that_the_shadow_lacks_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The warning is logged once, even if other requests are scored in between."""
    async with shadowed(lookup(**SCORES), fast=encoded_lookup(**SCORES), shadow=lookup(**SCORES)) as running:
        for strategy in ["fast", "accurate"] * 3:
            await running.ask(WORDS, strategy=strategy)
        await running.done()
        assert (running.value("shadow_failed_total"), running.value("shadow_scored_total")) == (3, 3)
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert "there are auto, accurate" in record.getMessage()


@pytest.mark.parametrize("error", [RuntimeError("no"), MemoryError("full"), torch.OutOfMemoryError("full")])
async def test_a_shadow_that_fails_is_counted(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """A failed sample is counted and not retried; the batches of requests do not shrink, and the log has one line."""
    async with shadowed(lookup(**SCORES), failing(error)) as running:
        for _ in range(3):
            answered = await running.ask(WORDS)
            await running.done()

        assert [candidate.index for candidate in answered.ranking.candidates] == [5, 4, 3, 2, 1, 0]
        assert running.value("shadow_failed_total") == 3
        assert running.value("failed_batches_total") == running.value("dropped_tasks_total", reason="expired") == 0
        assert "batches shrink" not in caplog.text
    assert [record.getMessage() for record in caplog.records].count(
        "the shadow failed; until it scores again, its failures are only counted"
    ) == 1


async def test_a_request_is_answered_while_its_shadow_is_held() -> None:
    """Not even a shadow with a thread of its own that hangs delays an answer."""
    gate = Gate()
    async with shadowed(lookup(**SCORES), WatchedScorer(lookup(**SCORES), gate), apart=True) as running:
        for _ in range(MAX_PENDING + 5):
            assert len((await running.ask(WORDS)).ranking.candidates) == len(WORDS)
        await asyncio.to_thread(gate.wait_for_batch)

        assert (running.value("shadow_pending"), running.dropped()) == (MAX_PENDING, {"full": 5})
        await running.shadow.close()
        assert (running.value("shadow_pending"), running.dropped()) == (0, {"full": 5, "stopping": MAX_PENDING})
        await running.ask(WORDS)
        assert running.dropped() == {"full": 5, "stopping": MAX_PENDING + 1}
        assert running.value("memory_in_flight_bytes") == 0
        gate.let_through(MAX_PENDING)


async def test_the_next_request_waits_for_one_batch_of_the_shadow() -> None:
    """The shadow's batch is small, and all of the request is scored before the shadow goes on."""
    gate, order = Gate(), []
    settings = Settings(device="cpu", max_batch_rows=320)

    def watch(batch: ScoreBatch) -> None:
        order.append(("shadow", int(batch.candidates.cu_seqlens[-1])))
        gate(batch)

    served = WatchedScorer(lookup(**SCORES), lambda batch: order.append(("request", len(batch.candidates))))
    texts = [" ".join([word] * 3) for word in WORDS]
    async with shadowed(served, WatchedScorer(lookup(**SCORES), watch), settings=settings) as running:
        await running.ask(texts)
        await asyncio.to_thread(gate.wait_for_batch)
        second = asyncio.ensure_future(running.ask(texts))
        await until(lambda: running.value("waiting_tasks") == 1)
        gate.let_through()
        await second
        gate.let_through(100)
        await running.done()

        names = [name for name, _ in order]
        assert names[:3] == ["request", "shadow", "request"]
        assert max(rows for name, rows in order if name == "shadow") <= 320 // 32
        assert running.value("shadow_scored_total") == 2


async def test_what_is_not_scored_in_time_is_dropped() -> None:
    """A sample has as much time as a request, from the moment when its turn comes."""
    gate = Gate()
    settings = Settings(device="cpu", request_timeout_s=0.05)
    shadow = WatchedScorer(lookup(**SCORES), gate)
    async with shadowed(lookup(**SCORES), shadow, settings=settings, apart=True) as running:
        await running.ask(WORDS)
        await running.done()

        assert running.dropped() == {"late": 1}
        gate.let_through()


async def test_samples_hold_memory_until_a_request_needs_it() -> None:
    """Samples take at most an eighth of the memory and give it up at once, even the sample that is being scored."""
    gate, texts = Gate(), [word + " " * 1000 for word in WORDS]
    shadow = WatchedScorer(lookup(**SCORES), gate)
    async with shadowed(lookup(**SCORES), shadow, memory_bytes=200_000, apart=True) as running:
        for _ in range(4):
            await running.ask(texts)
        await asyncio.to_thread(gate.wait_for_batch)
        held = running.value("memory_in_flight_bytes")

        assert 6000 < held < 200_000 / 8
        assert running.dropped() == {"memory": 4 - running.value("shadow_pending")}
        with running.memory.account(Client("one")) as account:
            account.hold(100_000)
            assert (running.value("shadow_pending"), running.value("memory_in_flight_bytes")) == (0, 100_000)
            assert running.dropped() == {"memory": 4}
            with pytest.raises(Overloaded), running.memory.account(Client("one")) as more:
                more.hold(1000)
        gate.let_through(2)
        await running.ask(texts)
        await running.done()
        assert running.value("shadow_scored_total") == 1


async def test_a_sample_that_could_never_be_held_is_dropped() -> None:
    """The request may hold that much memory, but the shadow may not."""
    async with shadowed(lookup(**SCORES), lookup(**SCORES), memory_bytes=50_000) as running:
        await running.ask([word + " " * 2000 for word in WORDS])

        assert (running.value("shadow_pending"), running.dropped()) == (0, {"too_large": 1})
