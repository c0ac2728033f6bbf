"""Writes to Redis that happen after the request that computed the entries was answered."""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context

from bandrank.engine.cache.redis_client import RedisClient, parts
from bandrank.metrics import Metrics

FLUSH_S = 2.0  # how long closing waits for the queue


class WriteBehind:
    """A queue of entries, bounded in bytes, that one task at a time writes to Redis. Used only from the event loop.

    seal: makes the value that Redis keeps from a value and its key. It is called for some entries at a time, because
    sealing all of them at once would hold up the event loop.
    """

    def __init__(
        self,
        redis: RedisClient,
        *,
        ttl_s: float | None,
        max_pending_bytes: int,
        metrics: Metrics,
        seal: Callable[[bytes, bytes], bytes],
    ) -> None:
        self._redis = redis
        self._seal = seal
        self._ttl_s = ttl_s
        self._max_pending_bytes = max_pending_bytes
        self._metrics = metrics
        self._pending: dict[bytes, bytes] = {}
        self._pending_bytes = 0
        self._num_lost = 0
        self._closed = False
        self._shrunk = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, entries: Mapping[bytes, bytes]) -> None:
        """Queues new entries; drops those that do not fit, and all of them while Redis does not answer."""
        writable = not self._closed and self._redis.available
        for key, value in entries.items():
            if key in self._pending:
                continue  # an entry that waits already needs no room
            if not writable or not self._has_room(len(key) + len(value)):
                self._lose(1, "dropped")
            else:
                self._pending[key] = value
                self._resize(len(key) + len(value))
        if self._pending and (self._task is None or self._task.done()):
            # In a context of its own: it writes what many requests computed, and logs under the id of none of them.
            self._task = asyncio.create_task(self._drain(), context=Context())

    async def put_all(self, entries: Mapping[bytes, bytes]) -> None:
        """Queues entries, waiting for room; drops them only while Redis does not answer.

        If the call is cancelled, it queues the remaining entries that fit and drops the others.
        """
        left = iter(entries.items())
        for key, value in left:
            while not self._has_room(len(key) + len(value)):
                self._shrunk.clear()
                try:
                    await self._shrunk.wait()
                except asyncio.CancelledError:
                    self.put({key: value, **dict(left)})
                    raise
            self.put({key: value})

    async def drained(self) -> bool:
        """Waits until the queue is empty; returns whether Redis stored all entries put here since the last call."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        lost, self._num_lost = self._num_lost, 0
        return lost == 0

    async def close(self) -> None:
        """Writes the queue for at most FLUSH_S; drops what is left then, and what is put later."""
        self._closed = True
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=FLUSH_S)
        if self._task.cancel():
            await asyncio.wait([self._task])
        self._lose(len(self._pending), "dropped")
        self._pending.clear()
        self._resize(-self._pending_bytes)

    async def _drain(self) -> None:
        while self._pending:
            batch = self._take()
            try:
                stored = await self._write(batch) if self._redis.available else None
            except asyncio.CancelledError:
                self._lose(len(batch), "failed")
                raise
            finally:
                self._resize(-_size(batch))
            if stored is None:
                self._lose(len(batch), "dropped")
            else:
                self._metrics.cache_writes.labels("stored").inc(stored)
                self._lose(len(batch) - stored, "failed")

    async def _write(self, batch: Mapping[bytes, bytes]) -> int:
        """Writes some entries; returns how many are known to be stored."""
        sealed = {key: self._seal(value, key) for key, value in batch.items()}
        return await self._redis.set_many(sealed, ttl_s=self._ttl_s)

    def _take(self) -> dict[bytes, bytes]:
        """Removes and returns the oldest entries: as many as suit one pipeline, and at least one."""
        batch = next(parts(self._pending))
        for key in batch:
            del self._pending[key]
        return batch

    def _has_room(self, size: int) -> bool:
        """Whether `size` more bytes fit; while nothing waits, an entry of any size does."""
        return not self._pending_bytes or self._pending_bytes + size <= self._max_pending_bytes

    def _lose(self, count: int, outcome: str) -> None:
        self._num_lost += count
        self._metrics.cache_writes.labels(outcome).inc(count)

    def _resize(self, change: int) -> None:
        self._pending_bytes += change
        if change < 0:
            self._shrunk.set()
        self._metrics.cache_pending_write_bytes.inc(change)


def _size(entries: Mapping[bytes, bytes]) -> int:
    return sum(len(key) + len(value) for key, value in entries.items())
