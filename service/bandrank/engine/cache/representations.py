"""Representations of candidates by the digest of their text: from memory, from Redis, or computed once."""

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.cache.keys import redis_keys
from bandrank.engine.cache.lru import LruCache
from bandrank.engine.cache.redis_client import READ_AT_ONCE, RedisClient
from bandrank.engine.cache.single_flight import SingleFlight
from bandrank.engine.cache.write_behind import WriteBehind
from bandrank.metrics import Metrics

Rescue = Callable[[Sequence[bytes]], None]  # keeps the payloads of the leading keys of a computation that is given up

# What an entry takes besides its key and payload: two objects, a dictionary entry and links; the largest size that
# tracemalloc showed on CPython 3.11.
ENTRY_BYTES = 180
# The first read from Redis asks for this many entries of unknown size: so many of a ColBERT's long texts fill
# READ_AT_ONCE. Each further read asks for twice as many until some are found, then for as many as READ_AT_ONCE holds
# at the latest mean size, or at an earlier, larger one, which decays: long texts may follow short ones.
FIRST_AT_ONCE, SIZE_DECAY = 8, 0.95


class RepresentationCache:
    """Payloads of one scorer's representations, in memory and behind that in Redis, if there is one.

    fingerprint: stands for the scorer; payloads of another scorer are never returned.
    ttl_s: seconds that Redis keeps an entry; None for no limit.
    If Redis is slow, gone or full, lookups miss and writes are dropped, and nothing else happens.
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
        self._mean_bytes = 0.0
        self._writes: WriteBehind | None = None
        if redis is not None:
            self._writes = WriteBehind(
                redis, ttl_s=ttl_s, max_pending_bytes=max_pending_writes_bytes, metrics=metrics, seal=codec.seal
            )

    async def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The payload of each key from memory or else from Redis; None where neither has it."""
        payloads = self._memory.get_many(keys)
        missing = [key for key, payload in zip(keys, payloads, strict=True) if payload is None]
        self._count("memory", {"hit": len(keys) - len(missing), "miss": len(missing)})
        if missing and self._redis is not None:
            stored = await self._from_redis(self._redis, missing)
            pairs = zip(keys, payloads, strict=True)
            payloads = [stored.get(key) if payload is None else payload for key, payload in pairs]
        return payloads

    async def compute_missing(
        self,
        keys: Sequence[bytes],
        compute: Callable[[list[bytes], Rescue], Awaitable[list[bytes]]],
        owner: Hashable = None,
        *,
        wait_for_room: bool = False,
    ) -> dict[bytes, bytes]:
        """The payload of each key that a lookup missed.

        `compute` gets the keys that no other caller of the same owner computes, or only as part of a much larger
        computation. wait_for_room: whether to wait when the queue of writes is full, rather than drop what does not
        fit. Cancelling the call cancels `compute`, unless others wait for its result. Raises what `compute` raises, and
        what another caller's `compute` raised for the same keys. Errors are not kept, but the payloads that `compute`
        rescues are.
        """
        waits, waiting = wait_for_room, dict[bytes, bytes]()  # others who join the computation do not wait for Redis

        def keep(payloads: dict[bytes, bytes], *, wait: bool) -> None:
            self._keep(payloads)
            if self._writes is not None:
                entries = dict(zip(redis_keys(self._fingerprint, list(payloads)), payloads.values(), strict=True))
                if wait:
                    waiting.update(entries)
                else:
                    self._writes.put(entries)

        async def compute_and_keep(unclaimed: list[bytes]) -> dict[bytes, bytes]:
            def rescue(leading: Sequence[bytes]) -> None:
                keep(dict(zip(unclaimed, leading, strict=False)), wait=False)

            payloads = dict(zip(unclaimed, await compute(unclaimed, rescue), strict=True))
            keep(payloads, wait=waits)
            return payloads

        # Another caller may have computed some of them while this caller's lookup waited for Redis.
        in_memory = zip(keys, self._memory.get_many(keys), strict=True)
        known = {key: payload for key, payload in in_memory if payload is not None}
        missing = [key for key in keys if key not in known]
        try:
            found = known | await self._flights.run(missing, compute_and_keep, owner)
        except BaseException:
            waits = False  # the computation may go on for others
            if self._writes is not None:
                self._writes.put(waiting)
            raise
        if self._writes is not None:
            await self._writes.put_all(waiting)
        return found

    @property
    def redis_is_full(self) -> bool:
        """Whether Redis had no room for some of the last write."""
        return self._redis is not None and self._redis.full

    async def drained(self) -> bool:
        """Waits until no write is queued; returns False if Redis lost any payload computed since the last call."""
        return self._writes is None or await self._writes.drained()

    async def close(self) -> None:
        """Writes what is queued, as far as a moment allows. Redis itself stays open for others."""
        if self._writes is not None:
            await self._writes.close()

    async def _from_redis(self, redis: RedisClient, missing: Sequence[bytes]) -> dict[bytes, bytes]:
        """Reads the payloads that Redis has for the keys, which may repeat, and keeps them in memory."""
        distinct = list(dict.fromkeys(missing))
        outcomes = dict.fromkeys(distinct, "unavailable")
        hits: dict[bytes, bytes] = {}
        start, at_once = 0, FIRST_AT_ONCE
        while start < len(distinct):
            if self._mean_bytes:
                at_once = max(1, int(READ_AT_ONCE / self._mean_bytes))
            part = distinct[start : start + at_once]
            names = redis_keys(self._fingerprint, part)
            if (values := await redis.get_many(names)) is None:
                break
            triples = zip(part, values, names, strict=True)
            sealed = {key: (value, name) for key, value, name in triples if value is not None}
            opened = {key: self.codec.open(value, name) for key, (value, name) in sealed.items()}
            read = {key: payload for key, payload in opened.items() if payload is not None}
            outcomes |= {key: "hit" if key in read else "corrupt" if key in sealed else "miss" for key in part}
            hits |= read
            start += len(part)
            at_once *= 2
            self._keep(read)
        self._count("redis", Counter(outcomes[key] for key in missing))
        return hits

    def _keep(self, payloads: Mapping[bytes, bytes]) -> None:
        if payloads:
            self._mean_bytes = max(sum(map(len, payloads.values())) / len(payloads), SIZE_DECAY * self._mean_bytes)
        entries = len(self._memory)
        self._metrics.cache_memory_bytes.inc(self._memory.put_many(payloads))  # two caches may share the gauges
        self._metrics.cache_memory_entries.inc(len(self._memory) - entries)

    def _count(self, tier: str, outcomes: Mapping[str, int]) -> None:
        for outcome, count in outcomes.items():
            self._metrics.cache_lookups.labels(tier, outcome).inc(count)


def _entry_bytes(key: bytes, payload: bytes) -> int:
    return ENTRY_BYTES + len(key) + len(payload)
