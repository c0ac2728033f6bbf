"""A replica's cache of representations, with a stand-in for the scorer that counts what it encodes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from random import Random

import numpy as np
import torch

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.cache.keys import digest
from bandrank.engine.cache.redis_client import RedisClient
from bandrank.engine.cache.representations import RepresentationCache, Rescue
from bandrank.metrics import Metrics
from bandrank.models.ragged import Ragged

SIZE = 24
CODEC = RepresentationCodec(SIZE, "float16")
PATIENT_S = 20.0  # a timeout for tests in which Redis answers; no machine is slow enough to reach it
FINGERPRINT = bytes(range(16))


@cache
def payload_of(key: bytes) -> bytes:
    """The expected payload of a key."""
    numbers = np.random.default_rng(list(key)).standard_normal((1 + key[0] % 3, SIZE), np.float32)
    return CODEC.payloads(Ragged(torch.from_numpy(numbers), np.array([0, len(numbers)])))[0]


def texts_of(rng: Random, count: int) -> list[str]:
    """Distinct random texts."""
    return [f"text {number}" for number in rng.sample(range(10**9), count)]


@dataclass(frozen=True)
class Fetched:
    """What a fetch returned, and the hits that the metrics counted meanwhile, those of overlapping fetches included."""

    payloads: list[bytes | None]
    memory_hits: int
    redis_hits: int
    misses: int


@dataclass
class Replica:
    """A cache with its metrics and its Redis client. computed: the keys that it had to compute, in order."""

    cache: RepresentationCache
    metrics: Metrics
    redis: RedisClient | None
    computed: list[bytes] = field(default_factory=list)

    async def fetch(self, texts: Sequence[str]) -> Fetched:
        """Looks texts up and computes the missing payloads; checks that every payload is right."""
        keys = [digest(text) for text in texts]
        before = self._hits()
        payloads = await self.cache.lookup(keys)
        memory_hits, redis_hits = (now - then for now, then in zip(self._hits(), before, strict=True))
        missing = [key for key, payload in zip(keys, payloads, strict=True) if payload is None]
        computed = await self.cache.compute_missing(missing, self._compute) if missing else {}
        for key, payload in zip(keys, payloads, strict=True):
            assert (payload or computed[key]) == payload_of(key)
        return Fetched(payloads, memory_hits, redis_hits, len(missing))

    async def store(self, texts: Sequence[str]) -> bool:
        """Fetches texts and waits for the writes to end; returns whether Redis stored them."""
        await self.fetch(texts)
        return await self.cache.drained()

    def sample(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(f"bandrank_{name}", labels)
        assert value is not None, (name, labels)
        return value

    def _hits(self) -> tuple[int, int]:
        memory, redis = (self.sample("cache_lookups_total", tier=tier, outcome="hit") for tier in ("memory", "redis"))
        return int(memory), int(redis)

    async def _compute(self, keys: list[bytes], _: Rescue) -> list[bytes]:
        self.computed += keys
        await asyncio.sleep(0)
        return [payload_of(key) for key in keys]


@asynccontextmanager
async def replica(
    url: str | None = None,
    *,
    timeout_s: float = PATIENT_S,
    memory_bytes: int = 2**24,
    ttl_s: float | None = 3600.0,
    max_pending_writes_bytes: int = 2**26,
) -> AsyncIterator[Replica]:
    """A replica that shares the Redis at a URL, closed at the end."""
    metrics = Metrics()
    redis = RedisClient.from_url(url, timeout_s=timeout_s, metrics=metrics) if url else None
    cache = RepresentationCache(
        FINGERPRINT,
        CODEC,
        memory_bytes=memory_bytes,
        redis=redis,
        ttl_s=ttl_s,
        metrics=metrics,
        max_pending_writes_bytes=max_pending_writes_bytes,
    )
    try:
        yield Replica(cache, metrics, redis)
    finally:
        await cache.close()
        if redis is not None:
            await redis.close()
