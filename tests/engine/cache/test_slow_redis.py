"""A Redis behind a slow line: reading a MiB takes half of a read's timeout."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
import torch
from support.tasks import until

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.cache.keys import digest
from bandrank.engine.cache.redis_client import RedisClient
from bandrank.engine.cache.redis_url import parse_redis_url
from bandrank.engine.cache.representations import RepresentationCache, Rescue
from bandrank.engine.cache.write_behind import WriteBehind
from bandrank.engine.candidates import CandidateStore
from bandrank.metrics import Metrics
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets

MIB = 1 << 20
READ_S = 0.2  # to read a MiB; the client waits twice as long
CODEC = RepresentationCodec(128, "float16")


class SlowLine:
    """The commands of a slow Redis. write_s: the seconds that each write takes. reads: how many reads there were."""

    def __init__(self, write_s: float = 0.0) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.reads = 0
        self._write_s = write_s

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values, after a time in proportion to their size."""
        self.reads += 1
        values = [self.stored.get(key) for key in keys]
        await asyncio.sleep(READ_S * sum(len(value) for value in values if value) / MIB)
        return values

    async def sizes(self, keys: Sequence[bytes]) -> list[int]:
        return [len(self.stored.get(key, b"")) for key in keys]

    async def set_many(self, entries: Mapping[bytes, bytes], ttl_ms: int | None) -> list[str]:
        del ttl_ms
        await asyncio.sleep(self._write_s)
        self.stored |= entries
        return []

    async def delete_many(self, keys: Sequence[bytes]) -> int:
        return sum(self.stored.pop(key, None) is not None for key in keys)

    async def close(self) -> None:
        """Nothing is open."""


def client(line: SlowLine) -> RedisClient:
    return RedisClient(parse_redis_url("redis://slow"), line, timeout_s=2 * READ_S, metrics=Metrics())


def cache(redis: RedisClient, *, memory_bytes: int = 0, max_pending_writes_bytes: int = 1 << 26) -> RepresentationCache:
    return RepresentationCache(
        bytes(16),
        CODEC,
        memory_bytes=memory_bytes,
        redis=redis,
        ttl_s=None,
        metrics=Metrics(),
        max_pending_writes_bytes=max_pending_writes_bytes,
    )


def write_behind(line: SlowLine, *, max_pending_bytes: int, metrics: Metrics | None = None) -> WriteBehind:
    """A queue of writes that stores values unsealed."""
    return WriteBehind(
        client(line),
        ttl_s=None,
        max_pending_bytes=max_pending_bytes,
        metrics=metrics or Metrics(),
        seal=lambda value, _: value,
    )


def keys_of(name: str, count: int) -> list[bytes]:
    return [digest(f"{name} {number}") for number in range(count)]


def rows(num_rows: int, count: int) -> list[bytes]:
    """Payloads of `count` representations of `num_rows` vectors each."""
    return CODEC.payloads(Ragged(torch.ones(num_rows * count, 128), offsets([num_rows] * count)))


async def register(representations: RepresentationCache, keys: Sequence[bytes], num_rows: int) -> None:
    """Encodes `num_rows` vectors for each key; 256 vectors, as of a long text, take 64 KiB."""

    async def compute(unclaimed: list[bytes], _: Rescue) -> list[bytes]:
        return rows(num_rows, len(unclaimed))

    await representations.compute_missing(keys, compute, wait_for_room=True)


async def test_long_texts_are_found_after_short_ones() -> None:
    """Few are asked for at once, although those that were read last were small; otherwise the read would time out."""
    representations = cache(client(SlowLine()))
    short, long = keys_of("short", 20), keys_of("long", 40)
    for keys, num_rows in ((short, 4), (long, 256)):
        await register(representations, keys, num_rows)
    assert await representations.drained()

    for _ in range(3):
        assert None not in await representations.lookup(short)
        assert None not in await representations.lookup(long)


async def test_a_fresh_replica_finds_long_texts() -> None:
    """A new replica does not know how large entries are, not even after reads that found none, and asks for few at
    once.
    """
    line, keys = SlowLine(), keys_of("long", 40)
    other = cache(client(line))
    await register(other, keys, 256)
    assert await other.drained()

    assert (await cache(client(line)).lookup(keys_of("none", 30) + keys)).count(None) == 30


async def test_a_redis_that_has_nothing_is_asked_a_few_times() -> None:
    """Each read asks for twice as many keys: 8 + 16 + ... + 512 are more than 1,000."""
    line = SlowLine()

    assert set(await cache(client(line)).lookup(keys_of("none", 1000))) == {None}
    assert line.reads == 7


async def joined(
    representations: RepresentationCache, keys: Sequence[bytes], ranked: Sequence[bytes]
) -> tuple[asyncio.Task[dict[bytes, bytes]], asyncio.Task[dict[bytes, bytes]], asyncio.Event]:
    """A registration of keys, a ranking that has joined it, and the event that lets their computation go on."""
    computing = asyncio.Event()

    async def compute(unclaimed: list[bytes], _: Rescue) -> list[bytes]:
        await computing.wait()
        return rows(4, len(unclaimed))

    registering = asyncio.create_task(representations.compute_missing(keys, compute, wait_for_room=True))
    await asyncio.sleep(0)
    ranking = asyncio.create_task(representations.compute_missing(ranked, compute))
    await asyncio.sleep(0)
    return registering, ranking, computing


async def test_a_request_that_joins_a_registration_does_not_wait_for_redis() -> None:
    """Only the registration itself waits until there is room for all its writes."""
    representations = cache(client(SlowLine(write_s=60)), memory_bytes=MIB, max_pending_writes_bytes=1000)
    keys = keys_of("text", 8)
    registering, ranking, computing = await joined(representations, keys, keys[:4])
    computing.set()

    async with asyncio.timeout(20):
        assert (await ranking).keys() >= set(keys[:4])
    assert not registering.done()
    registering.cancel()
    await asyncio.gather(registering, return_exceptions=True)


async def test_what_a_registration_computed_before_it_left_is_written() -> None:
    """The registration is cancelled while a ranking waits for its computation, which goes on and is stored."""
    line = SlowLine()
    representations = cache(client(line))
    keys = keys_of("text", 4)
    registering, ranking, computing = await joined(representations, keys, keys)
    registering.cancel()
    await asyncio.gather(registering, return_exceptions=True)
    computing.set()
    await ranking

    assert await representations.drained()
    assert len(line.stored) == 4


async def test_what_a_registration_left_in_the_queue_is_not_taken_for_written() -> None:
    """The registration is cancelled while the queue has room for one entry at a time; `drained` reports the loss."""
    line = SlowLine(write_s=0.01)
    representations = cache(client(line), max_pending_writes_bytes=1)
    registering = asyncio.create_task(register(representations, keys_of("a", 100), 4))
    await until(lambda: len(line.stored) > 1)
    registering.cancel()
    await asyncio.gather(registering, return_exceptions=True)

    assert not await representations.drained()
    assert 1 < len(line.stored) < 100
    assert await representations.drained()


async def test_a_large_text_has_the_time_that_it_takes() -> None:
    """The timeout grows with the size of the text, which is asked for before the text is read."""
    store = CandidateStore(client(SlowLine()), max_bytes=0)
    await store.put_many({"large": "a" * (4 * MIB)})

    assert await store.get_many(["large"]) == ["a" * (4 * MIB)]


async def test_writes_that_wait_are_bounded_in_bytes_and_none_comes_after_the_end() -> None:
    """Keys and values count, an entry that just fits has room, one that waits already needs none, and a dropped one is
    reported by `drained` once.
    """
    line = SlowLine()
    writes = write_behind(line, max_pending_bytes=30)
    writes.put({bytes([number]) * 4: b"value!" for number in range(5)})
    assert not await writes.drained()
    assert [key[0] for key in line.stored] == [0, 1, 2]
    for _ in range(2):
        writes.put({b"more": b"a" * 26})
    assert await writes.drained()
    await writes.close()
    writes.put({b"late": b""})

    assert not await writes.drained()
    assert b"late" not in line.stored


async def test_what_is_not_written_when_the_service_ends_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing does not wait for a Redis that takes longer, and leaves nothing pending."""
    monkeypatch.setattr("bandrank.engine.cache.write_behind.FLUSH_S", 0.01)
    metrics = Metrics()
    writes = write_behind(SlowLine(write_s=60), max_pending_bytes=MIB, metrics=metrics)
    writes.put({b"first": b"1"})
    await asyncio.sleep(0)  # starts the first write
    writes.put({b"second": b"22", b"third": b"333"})
    await writes.close()

    counted = {
        outcome: metrics.registry.get_sample_value("bandrank_cache_writes_total", {"outcome": outcome})
        for outcome in ("stored", "failed", "dropped")
    }
    assert counted == {"stored": 0, "failed": 1, "dropped": 2}
    assert metrics.registry.get_sample_value("bandrank_cache_pending_write_bytes") == 0
