"""The cache without Redis: computed payloads are found in memory, and no text is computed twice at the same time."""

import asyncio
import random
import time

import pytest
import torch
from support.replica import CODEC, Replica, payload_of, replica, texts_of
from support.scorers import encoded_lookup, word_id
from support.serving import ranked, served
from support.tasks import HANG_S, until

from bandrank.engine import representation_source
from bandrank.engine.cache.keys import cut_digest, digest
from bandrank.engine.cache.representations import RepresentationCache, Rescue
from bandrank.engine.options import Options
from bandrank.errors import ScoringFailed
from bandrank.models.ragged import Ragged
from bandrank.models.texts import WHOLE, Reach

ENTRY_BYTES = 350  # more than an entry of these tests takes


async def test_what_was_computed_is_found() -> None:
    async with replica() as one:
        cold = await one.fetch(["a", "b", "a"])
        warm = await one.fetch(["b", "c", "a", "b"])

        assert (cold.memory_hits, cold.redis_hits, cold.misses) == (0, 0, 3)
        assert (warm.memory_hits, warm.redis_hits, warm.misses) == (3, 0, 1)
        assert [payload is not None for payload in warm.payloads] == [True, False, True, True]
        assert one.computed == [digest("a"), digest("b"), digest("c")]
        assert one.sample("cache_lookups_total", tier="memory", outcome="hit") == 3
        assert one.sample("cache_lookups_total", tier="memory", outcome="miss") == 4
        assert one.sample("cache_lookups_total", tier="redis", outcome="miss") == 0
        assert one.sample("cache_memory_entries") == 3
        assert one.sample("cache_memory_bytes") > 0
        assert await one.cache.drained()


async def test_memory_keeps_to_its_bound() -> None:
    async with replica(memory_bytes=10 * ENTRY_BYTES) as one:
        for _ in range(20):
            await one.fetch(texts_of(random.Random(1), 50))

            assert 0 < one.sample("cache_memory_bytes") <= 10 * ENTRY_BYTES
            assert 5 < one.sample("cache_memory_entries") < 15


async def test_without_memory_everything_is_computed_each_time() -> None:
    async with replica(memory_bytes=0) as one:
        for _ in range(3):
            await one.fetch(["a", "b"])

    assert len(one.computed) == 6


async def test_requests_at_once_compute_a_text_once() -> None:
    texts = texts_of(random.Random(2), 30)
    async with replica() as one:
        await asyncio.gather(*(one.fetch(random.Random(seed).sample(texts, 20)) for seed in range(50)))

    assert sorted(one.computed) == sorted(digest(text) for text in texts)


async def test_what_was_computed_between_lookup_and_computation_is_not_computed_again() -> None:
    async with replica() as one:
        key = digest("a")
        looked_up = await one.cache.lookup([key])
        await one.fetch(["a"])
        computed_now = await one.cache.compute_missing([key], must_not_compute)

    assert (looked_up, computed_now) == ([None], {key: payload_of(key)})


async def must_not_compute(keys: list[bytes], _: Rescue) -> list[bytes]:
    raise AssertionError(keys)


async def fails(keys: list[bytes], _: Rescue) -> list[bytes]:
    del keys
    raise ScoringFailed("no")


async def test_a_failure_is_not_kept() -> None:
    async with replica() as one:
        with pytest.raises(ScoringFailed):
            await one.cache.compute_missing([digest("a")], fails)
        lookup = await one.fetch(["a"])

    assert lookup.misses == 1


async def test_a_computation_that_its_caller_left_is_kept() -> None:
    """The computation goes on because another caller waits for one of its texts; the others are kept too."""
    async with replica() as one:
        keys, started, go_on = [digest("a"), digest("b")], asyncio.Event(), asyncio.Event()

        async def slow(unclaimed: list[bytes], _: Rescue) -> list[bytes]:
            started.set()
            await go_on.wait()
            return [payload_of(key) for key in unclaimed]

        leaving = asyncio.create_task(one.cache.compute_missing(keys, slow))
        await started.wait()
        staying = asyncio.create_task(one.cache.compute_missing(keys[:1], must_not_compute))
        await asyncio.sleep(0)
        leaving.cancel()
        await until(leaving.done)
        go_on.set()

        assert await staying == {keys[0]: payload_of(keys[0])}
        assert (await one.fetch(["a", "b"])).memory_hits == 2


async def test_two_caches_share_the_gauges() -> None:
    """A service with two scorers has one set of metrics, which shows the sums of both caches."""
    async with replica() as one:
        other = RepresentationCache(bytes(16), CODEC, memory_bytes=2**20, redis=None, ttl_s=None, metrics=one.metrics)
        await one.fetch(["a", "b"])
        size = one.sample("cache_memory_bytes")
        await Replica(other, one.metrics, None).fetch(["a", "b"])

        assert one.sample("cache_memory_entries") == 4
        assert one.sample("cache_memory_bytes") == 2 * size


@pytest.mark.parametrize("reach", [WHOLE, Reach(tokens=2)], ids=["whole", "cut"])
async def test_large_texts_are_hashed_some_at_a_time(monkeypatch: pytest.MonkeyPatch, reach: Reach) -> None:
    """The event loop has a turn after every few texts, as all of them together may have 64 MiB."""
    hashed_in: list[int] = []
    turn = 0

    def watched(text: str, *more: int) -> bytes:
        hashed_in.append(turn)
        return cut_digest(text, *more) if more else digest(text)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(representation_source, "HASHED_AT_ONCE", 10)
    monkeypatch.setattr(representation_source, "digest", watched)
    monkeypatch.setattr(representation_source, "cut_digest", watched)
    async with served(encoded_lookup(man=1.0)) as model:
        counting = asyncio.ensure_future(count_turns())
        ranking = await model.rank("who", ["man", "she he he", "man he you he", "you"], options=Options(reach))
        counting.cancel()

    assert [candidate.index for candidate in ranking.candidates] == [0, 2, 1, 3]
    assert len(hashed_in) == len({*hashed_in}) == 4


async def test_no_text_gets_the_representation_of_another_after_a_failure() -> None:
    """The event loop learns of the failure only after the scoring thread has finished with the whole request."""
    scores = {"man": 1.0, "she": 2.0, "you": 3.0, "he": 4.0}
    loop, well = asyncio.get_running_loop(), False

    def hold_the_loop() -> None:
        while 0 < model.engine.worker.stuck_s < HANG_S:
            time.sleep(0.001)

    def choke(tokens: Ragged) -> None:
        first = [int(tokens[index][0]) for index in range(len(tokens))]
        if not well and (len(first) == 4 or word_id("she") in first):
            if len(first) == 1:
                loop.call_soon_threadsafe(hold_the_loop)
            raise torch.OutOfMemoryError("too large")

    async with served(encoded_lookup(choke, **scores)) as model:
        with pytest.raises(ScoringFailed):
            await model.rank("who", [*scores])
        well = True

        assert ranked(await model.rank("who", [*scores])) == [(3, 4.0), (2, 3.0), (1, 2.0), (0, 1.0)]
