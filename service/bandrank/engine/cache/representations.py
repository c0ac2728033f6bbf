"""Representations of candidates by the digest of their text: from memory, from Redis, or computed once."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.cache.keys import redis_keys
from bandrank.engine.cache.lru import LruCache
from bandrank.engine.cache.redis_client import RedisClient
from bandrank.engine.cache.single_flight import SingleFlight
from bandrank.engine.cache.write_behind import WriteBehind
from bandrank.metrics import Metrics

# Beside key and payload: two objects, dictionary entry and links; the most that tracemalloc saw on CPython 3.11.
ENTRY_BYTES = 180


@dataclass(frozen=True)
class Lookup:
    """The payload of each key, in the order of the keys; None where the cache has none."""

    payloads: list[bytes | None]

    @property
    def misses(self) -> int:
        """Number of keys without a payload; a key that comes twice counts twice."""
        return self.payloads.count(None)


class RepresentationCache:
    """Payloads of one scorer's representations, in memory and behind that in Redis, if there is one.

    fingerprint: of the scorer; what another one computed is never found.  ttl_s: how long Redis keeps an entry; None
    for as long as it likes.  A Redis that is slow, gone or full makes lookups miss and writes be dropped, nothing else.
    """

    def __init__(
        self,
        fingerprint: bytes,
        codec: RepresentationCodec,
        *,
        memory_bytes: int,
        redis: RedisClient | None,
        ttl_s: float | None,
        metrics: Metrics,
        max_pending_writes_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._fingerprint = fingerprint
        self.codec = codec
        self._memory = LruCache(memory_bytes, _entry_bytes)
        self._redis = redis
        self._metrics = metrics
        self._flights = SingleFlight()
        self._writes: WriteBehind | None = None
        if redis is not None:
            self._writes = WriteBehind(redis, ttl_s=ttl_s, max_pending_bytes=max_pending_writes_bytes, metrics=metrics)

    async def lookup(self, keys: Sequence[bytes]) -> Lookup:
        """What memory has of the keys and, asked in one go for the rest, Redis."""
        payloads = self._memory.get_many(keys)
        missing = [key for key, payload in zip(keys, payloads, strict=True) if payload is None]
        self._count("memory", {"hit": len(keys) - len(missing), "miss": len(missing)})
        if missing and self._redis is not None:
            stored = await self._from_redis(self._redis, missing)
            pairs = zip(keys, payloads, strict=True)
            payloads = [stored.get(key) if payload is None else payload for key, payload in pairs]
        return Lookup(payloads)

    async def compute_missing(
        self, keys: Sequence[bytes], compute: Callable[[list[bytes]], Awaitable[list[bytes]]]
    ) -> dict[bytes, bytes]:
        """The payload of each key, which a lookup did not find. `compute` gets the keys that nobody else computes.

        Cancelling the call cancels `compute`, unless others wait for what it computes. Raises what `compute` raises,
        also what another caller's raised for the same keys; nothing of that is kept.
        """

        async def compute_and_keep(wanted: list[bytes]) -> dict[bytes, bytes]:
            payloads = dict(zip(wanted, await compute(wanted), strict=True))
            self._keep(payloads)
            if self._writes is not None:
                sealed = map(self.codec.seal, payloads.values())
                self._writes.put(dict(zip(redis_keys(self._fingerprint, wanted), sealed, strict=True)))
            return payloads

        # Somebody may have computed some while this caller's lookup waited for Redis.
        held = zip(keys, self._memory.get_many(keys), strict=True)
        known = {key: payload for key, payload in held if payload is not None}
        return known | await self._flights.run([key for key in keys if key not in known], compute_and_keep)

    async def drained(self) -> bool:
        """Returns when no write waits: whether Redis, if there is one, took all that was computed since last asked."""
        return self._writes is None or await self._writes.drained()

    async def close(self) -> None:
        """Gives what waits to be written a last, short chance. Redis itself stays open for others."""
        if self._writes is not None:
            await self._writes.close()

    async def _from_redis(self, redis: RedisClient, missing: Sequence[bytes]) -> dict[bytes, bytes]:
        """Of the keys, with repetitions, those that Redis has; they are in memory afterwards."""
        distinct = list(dict.fromkeys(missing))
        values = await redis.get_many(redis_keys(self._fingerprint, distinct))
        if values is None:
            self._count("redis", {"unavailable": len(missing)})
            return {}
        found = {key: value for key, value in zip(distinct, values, strict=True) if value is not None}
        opened = {key: self.codec.open(value) for key, value in found.items()}
        hits = {key: payload for key, payload in opened.items() if payload is not None}
        self._count(
            "redis", Counter("hit" if key in hits else "corrupt" if key in found else "miss" for key in missing)
        )
        self._keep(hits)
        return hits

    def _keep(self, payloads: Mapping[bytes, bytes]) -> None:
        entries, size = len(self._memory), self._memory.num_bytes
        self._memory.put_many(payloads)
        self._metrics.cache_memory_entries.inc(len(self._memory) - entries)  # two caches may share the gauges
        self._metrics.cache_memory_bytes.inc(self._memory.num_bytes - size)

    def _count(self, tier: str, outcomes: Mapping[str, int]) -> None:
        for outcome, count in outcomes.items():
            self._metrics.cache_lookups.labels(tier, outcome).inc(count)


def _entry_bytes(key: bytes, payload: bytes) -> int:
    return ENTRY_BYTES + len(key) + len(payload)
