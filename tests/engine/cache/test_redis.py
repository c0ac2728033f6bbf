"""Replicas that share a Redis server."""

import asyncio
import random
from collections.abc import Iterator, Sequence

import pytest
from support.proxy import proxy_to
from support.redis_server import RedisServer, redis_server
from support.replica import CODEC, FINGERPRINT, payload_of, replica, texts_of
from support.stderr import logging_to_stderr

from bandrank.engine.cache import representations
from bandrank.engine.cache.keys import digest, redis_keys
from bandrank.engine.cache.representations import Rescue
from bandrank.logs import request_id, trace_id


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis server that the tests of this file share."""
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def server(module_server: RedisServer) -> RedisServer:
    """The shared server, emptied before the test."""
    module_server.do("FLUSHALL")
    module_server.do("CONFIG", "RESETSTAT")
    return module_server


def key_of(text: str) -> bytes:
    return redis_keys(FINGERPRINT, [digest(text)])[0]


def calls(server: RedisServer, command: str) -> int:
    stats = server.do("INFO", "commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def test_what_one_replica_computed_another_reads(server: RedisServer) -> None:
    texts = texts_of(random.Random(1), 300)
    async with replica(server.url) as first, replica(server.url) as second:
        assert await first.store(texts)
        cold = await first.fetch(texts)
        from_redis = await second.fetch(texts)
        from_memory = await second.fetch(texts)

    assert (cold.memory_hits, cold.misses) == (300, 0)
    assert (from_redis.memory_hits, from_redis.redis_hits, from_redis.misses) == (0, 300, 0)
    assert (from_memory.memory_hits, from_memory.redis_hits) == (300, 0)
    assert (len(first.computed), second.computed) == (300, [])


async def test_a_lookup_is_one_round_trip(server: RedisServer) -> None:
    """This holds for any number of candidates, repeated ones included, once the size of one is known."""
    texts = texts_of(random.Random(2), 500)
    async with replica(server.url) as first, replica(server.url, memory_bytes=0) as second:
        await first.store(texts)
        await second.fetch(texts[:1])
        server.do("CONFIG", "RESETSTAT")
        lookup = await second.fetch(texts + texts[:100] + texts[:1])

    assert (lookup.redis_hits, lookup.misses) == (601, 0)
    assert calls(server, "mget") == 1
    assert calls(server, "get") == 0


async def test_what_was_read_before_redis_failed_is_a_hit(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest counts as unavailable, and Redis is not asked again."""
    texts = texts_of(random.Random(10), 30)
    monkeypatch.setattr(representations, "FIRST_AT_ONCE", 10)
    monkeypatch.setattr(representations, "READ_AT_ONCE", 10)
    async with replica(server.url) as first, replica(server.url) as second:
        await first.store(texts)
        assert second.redis is not None
        answer, asked = second.redis.get_many, 0

        async def fails_later(keys: Sequence[bytes]) -> list[bytes | None] | None:
            nonlocal asked
            asked += 1
            return await answer(keys) if asked == 1 else None

        monkeypatch.setattr(second.redis, "get_many", fails_later)
        lookup = await second.fetch(texts)

        assert (lookup.redis_hits, lookup.misses, asked) == (10, 20, 2)
        assert second.sample("cache_lookups_total", tier="redis", outcome="unavailable") == 20


async def test_metrics_count_reads_and_writes(server: RedisServer) -> None:
    texts = texts_of(random.Random(3), 7)
    async with replica(server.url) as first, replica(server.url) as second:
        await first.store([*texts, texts[0]])
        await second.fetch([*texts, texts[0], "another"])
        size = sum(len(CODEC.seal(payload_of(digest(text)), key_of(text))) for text in texts)

        assert first.sample("cache_lookups_total", tier="memory", outcome="miss") == 8
        assert first.sample("cache_lookups_total", tier="redis", outcome="miss") == 8
        assert first.sample("cache_writes_total", outcome="stored") == 7
        assert first.sample("cache_pending_write_bytes") == 0
        assert first.sample("redis_bytes_total", direction="written") == size
        assert first.sample("redis_seconds_count", operation="set") == 1
        assert second.sample("cache_lookups_total", tier="redis", outcome="hit") == 8
        assert second.sample("cache_lookups_total", tier="redis", outcome="miss") == 1
        assert second.sample("redis_bytes_total", direction="read") == size
        assert second.sample("redis_seconds_count", operation="get") == 1
        assert second.sample("redis_errors_total", operation="get") == 0
        assert second.sample("cache_memory_entries") == 8
        assert second.sample("redis_breaker_state") == 0


async def test_a_failed_write_for_many_requests_names_none_of_them(
    server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """One task writes what many requests computed; the request that happens to start it is not to blame."""

    async def ask() -> bool:
        request_id.set("first")
        trace_id.set("first of its trace")
        return await one.store(["a"])

    server.do("CONFIG", "SET", "maxmemory", 1)
    try:
        async with replica(server.url) as one:
            with logging_to_stderr():
                assert not await asyncio.create_task(ask())
    finally:
        server.do("CONFIG", "SET", "maxmemory", 0)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "refuses to store" in line]

    assert "first" not in line


@pytest.mark.parametrize(("ttl_s", "least", "most"), [(100.0, 1, 100_000), (None, -1, -1)])
async def test_entries_expire_when_they_should(server: RedisServer, ttl_s: float | None, least: int, most: int) -> None:
    async with replica(server.url, ttl_s=ttl_s) as one:
        await one.store(["a text"])

    assert least <= server.do("PTTL", key_of("a text")) <= most


@pytest.mark.parametrize("of_another", [False, True], ids=["garbage", "of another text"])
async def test_a_damaged_value_is_a_miss(server: RedisServer, of_another: bool) -> None:
    """What the codec refuses is counted as corrupt, computed anew and replaced."""
    garbage = CODEC.seal(payload_of(digest("damaged")), key_of("another")) if of_another else b"no payload"
    server.do("SET", key_of("damaged"), garbage)
    async with replica(server.url) as one, replica(server.url) as other:
        lookup = await one.fetch(["damaged", "damaged", "fresh"])
        await one.cache.drained()
        again = await other.fetch(["damaged"])

        assert (lookup.redis_hits, lookup.misses) == (0, 3)
        assert one.sample("cache_lookups_total", tier="redis", outcome="corrupt") == 2
        assert one.sample("cache_lookups_total", tier="redis", outcome="miss") == 1
    assert again.redis_hits == 1


async def test_a_key_that_holds_no_string_is_a_miss(server: RedisServer) -> None:
    """Another program may have stored a list under the key."""
    server.do("RPUSH", key_of("a list"), "x")
    async with replica(server.url) as one:
        lookup = await one.fetch(["a list", "another"])

    assert (lookup.redis_hits, lookup.misses) == (0, 2)


async def test_many_requests_at_once(server: RedisServer) -> None:
    """Two replicas get requests for the same texts: every payload is right, and no text is computed twice in one that
    has room.
    """
    rng = random.Random(6)
    texts = texts_of(rng, 60)
    async with replica(server.url) as one, replica(server.url, memory_bytes=5000) as other:
        requests = [(rng.choice([one, other]), rng.sample(texts, 20)) for _ in range(200)]
        await asyncio.gather(*(asked.fetch(sample) for asked, sample in requests))

        assert len(one.computed) == len(set(one.computed)) <= 60
        assert one.sample("redis_errors_total", operation="get") == 0


async def test_plain_values_are_set_read_and_deleted(server: RedisServer) -> None:
    """Registered texts, which never expire, go through the same client."""
    async with replica(server.url) as one:
        redis = one.redis
        assert redis is not None
        assert await redis.get_many([]) == []
        assert await redis.set_many({}, ttl_s=None) == 0
        assert await redis.delete_many([]) == 0
        assert await redis.set_many({b"a": b"1", b"b": b"\x00\xff"}, ttl_s=None) == 2
        assert await redis.get_many([b"b", b"none", b"a", b"b"]) == [b"\x00\xff", None, b"1", b"\x00\xff"]
        assert await redis.delete_many([b"a", b"none"]) == 1
        assert await redis.get_many([b"a", b"b"]) == [None, b"\x00\xff"]
    assert server.do("PTTL", "b") == -1


async def test_what_is_queued_is_stored_when_the_cache_closes(server: RedisServer) -> None:
    texts = texts_of(random.Random(7), 2000)
    async with replica(server.url) as one:
        await one.fetch(texts)

        assert one.sample("cache_pending_write_bytes") > 0
    assert server.do("DBSIZE") == 2000
    assert one.sample("cache_pending_write_bytes") == 0


async def test_what_does_not_fit_the_queue_is_dropped(server: RedisServer) -> None:
    """A dropped entry is counted and stays in memory."""
    texts = texts_of(random.Random(8), 100)
    async with replica(server.url, max_pending_writes_bytes=2000) as one:
        stored = await one.store(texts)
        again = await one.fetch(texts)

        held = server.do("DBSIZE")
        assert not stored
        assert 1 <= held < 20
        assert one.sample("cache_writes_total", outcome="stored") == held
        assert one.sample("cache_writes_total", outcome="dropped") == 100 - held
        assert again.memory_hits == 100
        assert await one.cache.drained()


@pytest.mark.parametrize("max_bytes", [1, 2000, 100_000])
async def test_what_may_wait_for_the_queue_is_stored(server: RedisServer, max_bytes: int) -> None:
    """Everything is stored even if the queue has room for a single entry at a time, and without Redis nothing waits."""
    keys = [digest(text) for text in texts_of(random.Random(9), 600)]

    async def compute(unclaimed: list[bytes], _: Rescue) -> list[bytes]:
        return [payload_of(key) for key in unclaimed]

    async with replica(server.url, max_pending_writes_bytes=max_bytes) as one:
        await one.cache.compute_missing(keys[:300], compute, wait_for_room=True)

        assert await one.cache.drained()
        assert server.do("DBSIZE") == 300
        assert one.sample("cache_pending_write_bytes") == 0
        assert one.redis is not None
        await one.redis.close()
        await one.cache.compute_missing(keys[300:], compute, wait_for_room=True)
        assert not await one.cache.drained()


async def test_a_closed_client_answers_nothing(server: RedisServer) -> None:
    async with replica(server.url) as one:
        assert one.redis is not None
        await one.fetch(["before"])
        await one.redis.close()
        lookup = await one.fetch(["after"])

        assert lookup.misses == 1
        assert one.sample("cache_lookups_total", tier="redis", outcome="unavailable") == 1
        assert not one.redis.available


@pytest.mark.parametrize("reply", [b"$1\r\na\r\n", b"*1\r\n$1\r\na\r\n", b"$-1\r\n"])
async def test_a_reply_that_no_redis_gives_stores_and_deletes_nothing(server: RedisServer, reply: bytes) -> None:
    """Another server may listen where Redis should: what it answers is no error of the service's, and no success."""
    with proxy_to(server.port) as proxy:
        async with replica(proxy.url) as one:
            assert one.redis is not None
            await one.redis.check()
            proxy.instead = reply

            assert await one.redis.set_many({b"a": b"b"}, ttl_s=None) == 0
            assert await one.redis.delete_many([b"a"]) is None
