"""A Redis that is slow, gone, full or closed to us: lookups miss, writes are lost, and nothing else happens."""

import asyncio
import logging
import random
import time
from pathlib import Path

import pytest
from support.redis_server import RedisServer, free_port, redis_server
from support.replica import Replica, replica, texts_of
from support.tasks import HANG_S, until

pytestmark = pytest.mark.slow

SHORT_S = 0.05  # the service's default timeout
BOUND_S = 1.0  # for a lookup that waits for SHORT_S, with room for a machine that is busy with other things


async def fetch_new(one: Replica, rng: random.Random) -> float:
    """Fetches new texts; returns the seconds that it took."""
    started = time.monotonic()
    await one.fetch(texts_of(rng, 5))
    return time.monotonic() - started


async def recovered(one: Replica, rng: random.Random) -> None:
    """Returns once a text that was just stored can be read from Redis again."""
    async with asyncio.timeout(HANG_S):
        while True:
            await asyncio.sleep(0.02)
            assert one.redis is not None
            if await one.redis.set_many({b"probe": b"1"}, ttl_s=None) and await one.redis.get_many([b"probe"]):
                break
    assert await one.store(texts_of(rng, 5)) or await one.store(texts_of(rng, 5))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("bandrank")]


async def test_redis_that_hangs_for_five_seconds(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Every lookup returns in time; after a few failures Redis is left alone, and it is used again once it answers."""
    rng = random.Random(1)
    async with replica(server.url, timeout_s=SHORT_S) as one:
        await recovered(one, rng)
        server.freeze()
        started = time.monotonic()
        longest, states = 0.0, set()
        while time.monotonic() < started + 5.0:
            longest = max(longest, await fetch_new(one, rng))
            states.add(one.sample("redis_breaker_state"))
            await asyncio.sleep(0.01)
        errors = one.sample("redis_errors_total", operation="get")
        server.thaw()
        await recovered(one, rng)

        assert longest < BOUND_S
        assert 2 in states
        assert 3 <= errors <= 20
        assert one.sample("cache_lookups_total", tier="redis", outcome="unavailable") > 100
        assert one.sample("redis_breaker_state") == 0
    address = f"{server.url}/0"
    assert warnings_of(caplog) == [
        f"{address} does not answer, going on without it: TimeoutError",
        f"{address} answers again",
    ]


async def test_redis_that_is_killed_under_load_and_comes_back(server: RedisServer) -> None:
    """Requests still get the right payloads, and the new, empty server is filled again."""
    rng = random.Random(2)
    texts = texts_of(rng, 200)
    ended = asyncio.Event()

    async def load(asked: Replica) -> int:
        count = 0
        while not ended.is_set():
            await asked.fetch(rng.sample(texts, 20))
            await asyncio.sleep(0.001)
            count += 1
        return count

    async with replica(server.url, memory_bytes=20_000) as one, replica(server.url, memory_bytes=0) as other:
        async with asyncio.TaskGroup() as group:
            loads = [group.create_task(load(asked)) for asked in (one, other) for _ in range(8)]
            await asyncio.sleep(0.3)
            server.kill()
            await asyncio.sleep(0.7)
            down = one.sample("redis_breaker_state"), other.sample("redis_breaker_state")
            server.start()
            await recovered(one, rng)
            await recovered(other, rng)
            ended.set()

        assert down == (2, 2)
        assert all(task.result() > 3 for task in loads)
        hits = (await one.fetch(texts)).redis_hits + (await other.fetch(texts)).redis_hits
        assert hits > 0


async def test_a_late_reply_is_not_taken_for_another_calls(server: RedisServer) -> None:
    rng = random.Random(3)
    old, new = texts_of(rng, 40), texts_of(rng, 40)
    async with replica(server.url) as first:
        await first.store(old + new)
    async with replica(server.url, timeout_s=SHORT_S, memory_bytes=0) as one:
        await recovered(one, rng)
        for _ in range(3):
            server.freeze()
            late = await asyncio.gather(*(one.cache.lookup([bytes([n]) * 16]) for n in range(2)))
            server.thaw()
            await recovered(one, rng)

            assert late == [[None], [None]]
            for group in (old, new, old[::-1]):
                await one.fetch(group)  # checks every payload


async def test_an_event_loop_that_was_busy_does_not_blame_redis(server: RedisServer) -> None:
    """A reply that came in time counts, even if the process read it late."""
    texts = texts_of(random.Random(4), 50)
    async with replica(server.url) as first:
        await first.store(texts)
    async with replica(server.url, timeout_s=0.2) as one:
        await recovered(one, random.Random(5))
        lookup = asyncio.create_task(one.fetch(texts))
        for _ in range(20):
            await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251  # as parsing a large request does

        assert (await lookup).redis_hits == 50
        assert one.sample("redis_errors_total", operation="get") == 0


async def test_lookups_that_are_cancelled_leave_no_trace(server: RedisServer) -> None:
    """Clients that hang up neither open the breaker nor mix up later replies."""
    rng = random.Random(6)
    texts = texts_of(rng, 100)
    async with replica(server.url) as first:
        await first.store(texts)
    async with replica(server.url, memory_bytes=0) as one:
        for _ in range(200):
            asking = asyncio.create_task(one.fetch(rng.sample(texts, 10)))
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            asking.cancel()
        lookup = await one.fetch(texts)

        assert lookup.redis_hits == 100
        assert one.sample("redis_errors_total", operation="get") == 0


async def test_a_probe_that_is_cancelled_is_not_the_last(server: RedisServer) -> None:
    rng = random.Random(7)
    async with replica(server.url, timeout_s=SHORT_S) as one:
        server.freeze()
        while one.sample("redis_breaker_state") != 2:
            await fetch_new(one, rng)
        await asyncio.sleep(1.0)  # the first cool-down
        probe = asyncio.create_task(fetch_new(one, rng))
        await until(lambda: one.sample("redis_breaker_state") == 1)
        probe.cancel()
        server.thaw()
        await recovered(one, rng)


async def test_redis_that_is_not_there_yet() -> None:
    rng = random.Random(8)
    async with replica(f"redis://127.0.0.1:{free_port()}") as one:
        for _ in range(5):
            await fetch_new(one, rng)
        assert not await one.cache.drained()

        assert one.sample("redis_breaker_state") == 2
        assert sum(one.sample("redis_errors_total", operation=name) for name in ("get", "set")) == 3
        assert one.sample("cache_memory_entries") == 25
        failed = one.sample("cache_writes_total", outcome="failed")
        assert failed + one.sample("cache_writes_total", outcome="dropped") == 25


async def test_redis_that_is_full_refuses(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Entries that it has are still read; refused ones are counted, and the refusal is logged once."""
    texts = texts_of(random.Random(9), 1500)
    async with replica(server.url) as one, replica(server.url) as other:
        await one.store(texts[:100])
        server.do("CONFIG", "SET", "maxmemory", server.do("INFO", "memory")["used_memory"])
        complete = await one.store(texts[100:])
        lookup = await other.fetch(texts)

        stored = one.sample("cache_writes_total", outcome="stored")
        assert not complete
        assert 100 <= stored < 1500
        assert stored + one.sample("cache_writes_total", outcome="failed") == 1500
        assert lookup.redis_hits == stored == server.do("DBSIZE")
        assert one.sample("redis_breaker_state") == 0
        assert one.sample("redis_errors_total", operation="set") > 0
        server.do("CONFIG", "SET", "maxmemory", 0)
        assert await one.store(["there is room again"])
    told = [f"{server.url}/0 {what}" for what in ("refuses to store: OutOfMemoryError", "stores again")]
    assert set(warnings_of(caplog)) == set(told)
    assert [warnings_of(caplog)[index] for index in (0, -1)] == told


async def test_redis_that_makes_room(server: RedisServer) -> None:
    """Redis evicts the entries that were not used lately, and they are computed again."""
    server.do("CONFIG", "SET", "maxmemory", server.do("INFO", "memory")["used_memory"] + 500_000)
    server.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    texts = texts_of(random.Random(10), 3000)
    async with replica(server.url) as one, replica(server.url) as other:
        # In parts, since what Redis holds of a request under way takes the place of entries.
        parts = [texts[begin : begin + 300] for begin in range(0, len(texts), 300)]
        for part in parts:
            assert await one.store(part)
        hits = sum([(await other.fetch(part)).redis_hits for part in parts])

        assert server.do("INFO", "stats")["evicted_keys"] > 0
        assert 0 < hits < 3000
        assert one.sample("cache_writes_total", outcome="stored") == 3000


SECRET = "p@ss:w/rd?#%"  # noqa: S105  # of servers that live for seconds
ENCODED = "p%40ss%3Aw%2Frd%3F%23%25"


async def test_a_password(tmp_path: Path) -> None:
    """Special characters in the password are percent-encoded in the URL."""
    with redis_server(tmp_path / "redis", "--requirepass", SECRET) as server:
        texts = texts_of(random.Random(11), 20)
        url = f"redis://:{ENCODED}@127.0.0.1:{server.port}/3"
        async with replica(url) as one, replica(url) as other:
            assert await one.store(texts)
            assert (await other.fetch(texts)).redis_hits == 20


async def test_a_user_with_few_rights(server: RedisServer) -> None:
    """The service needs the rights to three commands on its own keys."""
    server.do("ACL", "SETUSER", "ranker", "on", f">{SECRET}", "~bandrank:*", "+mget", "+set", "+unlink")
    texts = texts_of(random.Random(12), 20)
    url = f"redis://ranker:{ENCODED}@127.0.0.1:{server.port}"
    async with replica(url) as one, replica(url) as other:
        assert await one.store(texts)
        assert (await other.fetch(texts)).redis_hits == 20
        assert other.redis is not None
        assert await other.redis.delete_many([b"bandrank:none"]) == 0


@pytest.mark.parametrize("credentials", [f":{ENCODED}@", f"ranker:{ENCODED}@", ""])
async def test_wrong_credentials(tmp_path: Path, caplog: pytest.LogCaptureFixture, credentials: str) -> None:
    """Redis is left alone, and no log line has the password."""
    caplog.set_level(logging.DEBUG)
    with redis_server(tmp_path / "redis", "--requirepass", "another") as server:
        async with replica(f"redis://{credentials}127.0.0.1:{server.port}") as one:
            for number in range(6):
                lookup = await one.fetch([f"text {number}"])
                assert lookup.redis_hits == 0

            assert one.sample("redis_breaker_state") == 2
            # Three failures open the breaker; a write may have been under way.
            assert sum(one.sample("redis_errors_total", operation=name) for name in ("get", "set")) in {3, 4}
    told = "AuthenticationError"
    assert warnings_of(caplog) == [f"{server.url}/0 does not answer, going on without it: {told}"]
    assert SECRET not in caplog.text
    assert ENCODED not in caplog.text
