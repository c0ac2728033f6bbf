"""A Redis that answers when, and as, the test says."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from support.tasks import Clock, until

from bandrank.engine.cache.redis_client import RedisClient
from bandrank.engine.cache.redis_url import parse_redis_url
from bandrank.metrics import Metrics


class ScriptedCommands:
    """Commands whose answers the test gives; `answers` has a future for each call, in order, once it is made."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[Any]] = []  # their results have three types
        self.cancelled = 0
        self.closed = False

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        del keys
        return await self._answer()  # type: ignore[no-any-return]  # as the test gives it

    async def set_many(self, entries: Mapping[bytes, bytes], ttl_ms: int | None) -> list[Exception]:
        del entries, ttl_ms
        return await self._answer()  # type: ignore[no-any-return]  # as the test gives it

    async def delete_many(self, keys: Sequence[bytes]) -> int:
        del keys
        return await self._answer()  # type: ignore[no-any-return]  # as the test gives it

    async def close(self) -> None:
        self.closed = True

    async def _answer(self) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Scripted:
    """A Redis client with scripted commands, metrics and a clock of its own."""

    def __init__(self, timeout_s: float) -> None:
        self.commands = ScriptedCommands()
        self.metrics = Metrics()
        self.clock = Clock()
        self.client = RedisClient(
            parse_redis_url("redis://scripted"),
            self.commands,
            timeout_s=timeout_s,
            metrics=self.metrics,
            clock=self.clock,
        )

    async def ask(self) -> asyncio.Task[list[bytes | None] | None]:
        """Starts a read, and returns its task once it has reached the commands or has ended."""
        asked = len(self.commands.answers)
        task = asyncio.create_task(self.client.get_many([b"a"]))
        await until(lambda: len(self.commands.answers) > asked or task.done())
        return task

    async def fail(self, times: int = 1) -> None:
        """Makes this many reads, all of which fail."""
        for _ in range(times):
            task = await self.ask()
            self.commands.answers[-1].set_exception(ConnectionError("broken"))
            assert await task is None

    async def recover(self) -> None:
        """Makes a read that probes and succeeds."""
        task = await self.ask()
        assert self.state == 1
        self.commands.answers[-1].set_result([b"1"])
        assert await task == [b"1"]
        assert self.state == 0

    async def write(self, answer: Exception | None = None) -> int:
        """Writes one key and returns the number of keys set. answer: the error with which the write fails, if any."""
        asked = len(self.commands.answers)
        task = asyncio.create_task(self.client.set_many({b"a": b"1"}, ttl_s=1.0))
        await until(lambda: len(self.commands.answers) > asked or task.done())
        if not task.done() and answer is None:
            self.commands.answers[-1].set_result([])
        elif not task.done():
            self.commands.answers[-1].set_exception(answer)
        return await task

    @property
    def state(self) -> float | None:
        """The breaker's state in the metrics."""
        return self.metrics.registry.get_sample_value("bandrank_redis_breaker_state")

    @property
    def errors(self) -> float | None:
        """The number of failed reads."""
        return self.metrics.registry.get_sample_value("bandrank_redis_errors_total", {"operation": "get"})


@asynccontextmanager
async def scripted(timeout_s: float = 60.0) -> AsyncIterator[Scripted]:
    """A scripted client, which is closed at the end."""
    one = Scripted(timeout_s)
    yield one
    await one.client.close()
    assert one.commands.closed
