"""Calls to Redis that are answered in time or count as failed."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, AnyStr, Literal, Self, TypeVar

from bandrank.engine.cache.breaker import BreakerState, CircuitBreaker
from bandrank.engine.cache.redis_commands import RedisCommands, connect, is_refusal, lacks_room, reason
from bandrank.engine.cache.redis_url import RedisAddress, parse_redis_url
from bandrank.errors import NotReady
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)

Operation = Literal["get", "set", "delete"]
Answer = TypeVar("Answer")
Command = Callable[[], Coroutine[Any, Any, Answer]]

CONNECT_TIMEOUT_S = 1.0
SOCKET_TIMEOUT_S = 1.0  # a connection that owes a reply for longer is closed
MAX_CONNECTIONS = 32  # calls under way, each with a connection to every server that it asks; others wait their turn
ENTRIES_AT_ONCE = 256
BYTES_AT_ONCE = 4 * 1024 * 1024  # per pipeline: a tenth of a second at 40 MB/s
READ_AT_ONCE = 1 << 20  # bytes, or one larger value: arrives within a read's timeout even from a distant Redis


def parts(entries: Mapping[AnyStr, AnyStr]) -> Iterator[dict[AnyStr, AnyStr]]:
    """Splits entries, in their order, into parts that suit one pipeline, each of at least one entry."""
    part: dict[AnyStr, AnyStr] = {}
    size = 0
    for key, value in entries.items():
        size += len(key) + len(value)
        if part and (size > BYTES_AT_ONCE or len(part) == ENTRIES_AT_ONCE):
            yield part
            part, size = {}, len(key) + len(value)
        part[key] = value
    if part:
        yield part


class _NoTurn(TimeoutError):
    """Redis was not asked, because MAX_CONNECTIONS calls were still waiting for a reply."""


class RedisClient:
    """Bounded calls to Redis: errors and late answers are counted and never raised.

    After a few failures in a row, with no answer in between, Redis is left alone for a while. A call that takes too
    long returns to its caller but continues briefly in the background, so that the connection it opens serves the next
    call and its reply is not taken for another call's. A client may be created outside an event loop; it is used and
    closed in one.
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
        self._logged_down = self._logged_refusal = False
        self._full = False
        self._read_failed = False
        self._last_answer = -math.inf  # when a read was last answered in time, in monotonic seconds
        metrics.redis_breaker_state.set_function(lambda: self._breaker.state.value)

    @classmethod
    def from_url(cls, url: str, *, timeout_s: float, metrics: Metrics) -> Self:
        """A client for a URL as `parse_redis_url` reads it; nothing is connected yet. Raises ValueError.

        timeout_s: seconds after which a read is given up.
        """
        address = parse_redis_url(url)
        commands = connect(
            address,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            socket_timeout_s=max(SOCKET_TIMEOUT_S, timeout_s),
            max_connections=2 * MAX_CONNECTIONS,  # with room for those that are being closed
        )
        return cls(address, commands, timeout_s=timeout_s, metrics=metrics)

    @property
    def available(self) -> bool:
        """Whether a call made now would reach Redis."""
        return not (self._closed or self._breaker.cooling)

    @property
    def full(self) -> bool:
        """Whether Redis had no room for some of the last write."""
        return self._full

    async def get_many(self, keys: Sequence[bytes], num_bytes: int = 0) -> list[bytes | None] | None:
        """The value of each key, None where there is none; None in all if Redis did not answer in time.

        num_bytes: the size of all values, if it is known; more than READ_AT_ONCE is given more time.
        """
        if not keys:
            return []
        timeout_s = min(self._read_timeout_s * max(1.0, num_bytes / READ_AT_ONCE), self._write_timeout_s)
        values = await self._call("get", lambda: self._commands.get_many(keys), timeout_s)
        if values is not None:
            self._metrics.redis_bytes.labels("read").inc(sum(len(value) for value in values if value is not None))
        return values

    async def sizes(self, keys: Sequence[bytes]) -> list[int] | None:
        """The size of each key's value in bytes, 0 where there is none; None in all if Redis did not answer in time."""
        if not keys:
            return []
        return await self._call("get", lambda: self._commands.sizes(keys), self._read_timeout_s)

    async def set_many(self, entries: Mapping[bytes, bytes], *, ttl_s: float | None) -> int:
        """Sets each key, to expire after `ttl_s` seconds if given; returns how many keys are known to be set.

        The entries are written in parts, each with its own timeout; nothing is written after a part that is not
        answered.
        """
        ttl_ms = None if ttl_s is None else max(1, round(1000 * ttl_s))
        num_set = 0
        for part in parts(entries):
            refusals = await self._call("set", partial(self._commands.set_many, part, ttl_ms), self._write_timeout_s)
            if refusals is None:
                self._full = False  # as far as is known: nothing was refused
                break
            self._log_refusals(refusals)
            self._metrics.redis_bytes.labels("written").inc(sum(map(len, part.values())))
            num_set += len(part) - len(refusals)
        return num_set

    async def delete_many(self, keys: Sequence[bytes]) -> int | None:
        """Deletes keys; returns how many of them existed, None if Redis did not answer in time."""
        if not keys:
            return 0
        return await self._call("delete", lambda: self._commands.delete_many(keys), self._write_timeout_s)

    async def check(self) -> None:
        """Returns once Redis has answered a read, however long connecting takes.

        Raises NotReady, with the reason, if it does not answer.
        """
        # Keys in two slots: a lone node of a cluster may own one of them, and would answer for that one.
        answer = await self._run(partial(self._commands.get_many, [b"bandrank:check:{0}", b"bandrank:check:{1}"]))
        if isinstance(answer, Exception):
            raise NotReady(f"{self._address} does not answer: {reason(answer)}")

    async def close(self) -> None:
        """Ends all calls and closes all connections."""
        self._closed = True
        while self._running:  # when a call ends, one that waits for its turn begins
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running)
        with suppress(Exception):  # a connection that cannot be closed is gone already
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._commands.close()

    async def _call(self, operation: Operation, command: Command[Answer], timeout_s: float) -> Answer | None:
        """The command's answer; None if it failed, took too long, or was not tried."""
        if self._closed or (permit := self._breaker.permit(probes=self._success_counts(operation))) is None:
            return None
        started, busy = time.monotonic(), time.thread_time()
        answer: Answer | Exception = _NoTurn()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._turns.acquire()
                task = asyncio.create_task(self._run(command))
                self._running.add(task)
                task.add_done_callback(self._end)
                answer = TimeoutError()
                answer = await _answer(task, started + timeout_s, busy)
        except asyncio.CancelledError:
            self._breaker.abandoned(permit)
            raise
        finally:
            self._metrics.redis_seconds.labels(operation).observe(time.monotonic() - started)
        self._settle(operation, answer, started, permit)
        return None if isinstance(answer, Exception) else answer

    async def _run(self, command: Command[Answer]) -> Answer | Exception:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                return await command()
        except Exception as error:  # noqa: BLE001  # whatever it is, the cache goes on without Redis
            return error

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._turns.release()

    def _settle(self, operation: Operation, answer: object, started: float, permit: int) -> None:
        """Reports how a call ended to the breaker, the metrics and, if the state changed, the log."""
        failed, asked = isinstance(answer, Exception), not isinstance(answer, _NoTurn)
        if operation == "get" and asked:
            self._read_failed = failed
            if not failed:
                self._last_answer = time.monotonic()
        if failed:
            self._metrics.redis_errors.labels(operation).inc()
        if not failed and self._success_counts(operation):
            self._breaker.succeeded(permit)
        elif failed and asked and started > self._last_answer and not (operation == "delete" and is_refusal(answer)):
            self._breaker.failed(permit)
        else:  # the success says too little, Redis answered this or another call, or it was not asked
            self._breaker.abandoned(permit)
        state = self._breaker.state
        if state is BreakerState.OPEN and not self._logged_down:
            log.warning("%s does not answer, going on without it: %s", self._address, reason(answer))
        elif state is BreakerState.CLOSED and self._logged_down:
            log.warning("%s answers again", self._address)
        self._logged_down = state is not BreakerState.CLOSED

    def _success_counts(self, operation: Operation) -> bool:
        """Whether a success shows that Redis is well; while reads fail a write's does not, as it has much more time."""
        return operation == "get" or not self._read_failed

    def _log_refusals(self, refusals: Sequence[Exception]) -> None:
        self._metrics.redis_errors.labels("set").inc(bool(refusals))
        self._full = any(map(lacks_room, refusals))
        if refusals and not self._logged_refusal:
            log.warning("%s refuses to store: %s", self._address, reason(refusals[0]))
        elif self._logged_refusal and not refusals:
            log.warning("%s stores again", self._address)
        self._logged_refusal = bool(refusals)


async def _answer(task: asyncio.Task[Answer | Exception], deadline: float, busy: float) -> Answer | Exception:
    """The task's result by the deadline, in monotonic seconds. Raises TimeoutError.

    busy: the thread's CPU seconds when the call began. The time that the thread has since spent computing or not
    running is granted once more, because the reply may have been waiting to be read.
    """
    await asyncio.wait([task], timeout=max(0.0, deadline - time.monotonic()))
    if not task.done():
        await asyncio.wait([task], timeout=max(time.monotonic() - deadline, time.thread_time() - busy, 0.0))
    if not task.done() or task.cancelled():
        raise TimeoutError
    return task.result()
