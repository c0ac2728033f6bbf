"""Redis as the cache sees it: it answers in time, or it is not there."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, TypeVar

from bandrank.engine.cache.breaker import BreakerState, CircuitBreaker
from bandrank.engine.cache.redis_commands import RedisCommands, connect
from bandrank.engine.cache.redis_url import RedisAddress, parse_redis_url
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)

Operation = Literal["get", "set", "delete"]
Answer = TypeVar("Answer")

CONNECT_TIMEOUT_S = 1.0
SOCKET_TIMEOUT_S = 1.0  # a connection that owes a reply for longer is closed
MAX_CONNECTIONS = 32  # to a server, and calls under way; further ones wait for their turn


class RedisClient:
    """Bounded calls to Redis: what is not answered in time, or goes wrong, is counted and never raised.

    After a few failures in a row, with no answer in between, Redis is left alone for a while. A call that takes too
    long is not cut off but goes on for a moment, out of its caller's sight: a connection that is being made serves the
    next call, and a reply is taken by the call that it belongs to. Made before or in an event loop; used and closed in
    one.
    """

    def __init__(
        self,
        address: RedisAddress,
        commands: RedisCommands,
        *,
        timeout_s: float,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._commands = commands
        self._read_timeout_s = timeout_s
        self._write_timeout_s = CONNECT_TIMEOUT_S + max(SOCKET_TIMEOUT_S, timeout_s)
        self._metrics = metrics
        self._breaker = CircuitBreaker(clock)
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._told_down = self._told_refusing = False
        self._last_answer = -math.inf  # monotonic seconds, of a read that was answered in time
        metrics.redis_breaker_state.set_function(lambda: self._breaker.state.value)

    @classmethod
    def from_url(
        cls, url: str, *, timeout_s: float, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> Self:
        """A client for a URL as `parse_redis_url` reads it; nothing is connected yet. Raises ValueError.

        timeout_s: after which a read is given up.
        """
        address = parse_redis_url(url)
        commands = connect(
            address,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            socket_timeout_s=max(SOCKET_TIMEOUT_S, timeout_s),
            max_connections=2 * MAX_CONNECTIONS,  # with room for those that are being closed
        )
        return cls(address, commands, timeout_s=timeout_s, metrics=metrics, clock=clock)

    @property
    def available(self) -> bool:
        """Whether a call made now would reach Redis."""
        return not (self._closed or self._breaker.cooling)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None] | None:
        """The value of each key, None where there is none; None in all if Redis did not answer in time."""
        if not keys:
            return []
        values = await self._call("get", self._commands.get_many, keys, timeout_s=self._read_timeout_s)
        if values is not None:
            self._metrics.redis_bytes.labels("read").inc(sum(len(value) for value in values if value is not None))
        return values

    async def set_many(self, items: Mapping[bytes, bytes], ttl_s: float | None) -> bool:
        """Sets each key, to expire after `ttl_s` if given; returns whether all are set."""
        return await self.set_each(items, ttl_s) == len(items)

    async def set_each(self, items: Mapping[bytes, bytes], ttl_s: float | None) -> int:
        """Sets each key, to expire after `ttl_s` if given; returns how many are known to be set."""
        if not items:
            return 0
        ttl_ms = None if ttl_s is None else max(1, round(1000 * ttl_s))
        refusals = await self._call("set", self._commands.set_many, items, ttl_ms, timeout_s=self._write_timeout_s)
        if refusals is None:
            return 0
        self._tell_refusals(refusals)
        self._metrics.redis_bytes.labels("written").inc(sum(map(len, items.values())))
        return len(items) - len(refusals)

    async def delete_many(self, keys: Sequence[bytes]) -> int | None:
        """Deletes keys; returns how many there were, None if Redis did not answer in time."""
        if not keys:
            return 0
        return await self._call("delete", self._commands.delete_many, keys, timeout_s=self._write_timeout_s)

    async def close(self) -> None:
        """Ends all calls and closes all connections."""
        self._closed = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        with suppress(Exception):  # what cannot be closed is gone already
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._commands.close()

    async def _call(
        self,
        operation: Operation,
        command: Callable[..., Coroutine[Any, Any, Answer]],
        *arguments: Any,
        timeout_s: float,
    ) -> Answer | None:
        """What the command returns; None if it failed, took too long, or was not tried."""
        if self._closed or not self._breaker.allows():
            return None
        begun, busy = time.monotonic(), time.thread_time()
        answer: Answer | Exception = TimeoutError()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._turns.acquire()
                answer = await self._answer(self._start(command, arguments), begun + timeout_s, busy)
        except asyncio.CancelledError:
            self._breaker.abandoned()
            raise
        finally:
            self._metrics.redis_seconds.labels(operation).observe(time.monotonic() - begun)
        self._settle(operation, answer, begun)
        return None if isinstance(answer, Exception) else answer

    def _start(
        self, command: Callable[..., Coroutine[Any, Any, Answer]], arguments: tuple[Any, ...]
    ) -> asyncio.Task[Answer | Exception]:
        task = asyncio.create_task(self._run(command, arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: self._turns.release())
        return task

    async def _run(
        self, command: Callable[..., Coroutine[Any, Any, Answer]], arguments: tuple[Any, ...]
    ) -> Answer | Exception:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                return await command(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever it is, the cache goes on without Redis
            return error

    async def _answer(self, task: asyncio.Task[Answer | Exception], deadline: float, busy: float) -> Answer | Exception:
        """What the task returns by the deadline, monotonic seconds. Raises TimeoutError.

        busy: seconds that this thread had computed when the call began. The time that it spent computing since then, or
        in which it did not run, is given back once: the reply may long have been there for it to read.
        """
        await asyncio.wait([task], timeout=max(0.0, deadline - time.monotonic()))
        if not task.done():
            await asyncio.wait([task], timeout=max(time.monotonic() - deadline, time.thread_time() - busy, 0.0))
        if not task.done() or task.cancelled():
            raise TimeoutError
        return task.result()

    def _settle(self, operation: Operation, answer: object, begun: float) -> None:
        """Tells the breaker, the metrics and, if the state changed, the log."""
        failed = isinstance(answer, Exception)
        if failed:
            self._metrics.redis_errors.labels(operation).inc()
        if failed and begun > self._last_answer:
            self._breaker.failed()
        elif failed:
            self._breaker.abandoned()  # Redis did answer others in the meantime: it is this process that is slow
        elif operation == "get":
            self._last_answer = time.monotonic()
            self._breaker.succeeded()
        elif self._breaker.state is BreakerState.HALF_OPEN:
            self._breaker.succeeded()  # else not: these have so much time that success says little about reads
        state = self._breaker.state
        if state is BreakerState.OPEN and not self._told_down:
            log.warning("%s does not answer, going on without it: %s", self._address, type(answer).__name__)
        elif state is BreakerState.CLOSED and self._told_down:
            log.warning("%s answers again", self._address)
        self._told_down = state is not BreakerState.CLOSED

    def _tell_refusals(self, refusals: Sequence[Exception]) -> None:
        self._metrics.redis_errors.labels("set").inc(bool(refusals))
        if refusals and not self._told_refusing:
            log.warning("%s refuses to store: %s", self._address, type(refusals[0]).__name__)
        elif self._told_refusing and not refusals:
            log.warning("%s stores again", self._address)
        self._told_refusing = bool(refusals)
