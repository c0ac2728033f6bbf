"""Registers candidates from a stream of lines, which may go on for hours: read no faster than they are encoded."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

from fastapi import Request

from bandrank.api.disconnects import hung_up, unless_gone
from bandrank.api.parsing import load, num_values, validated
from bandrank.api.registered import LineError, RegisteredCandidate, RegisterResponse
from bandrank.api.service import Service
from bandrank.engine.clients import Client
from bandrank.engine.task_queue import STOPPING
from bandrank.errors import BandrankError, InputTooLarge, InvalidInput, NotReady, Overloaded, TooSlow

LINES_AT_ONCE, BYTES_AT_ONCE = 256, 1 << 20  # stored and encoded together
# How many lines of a stream are read before a pause, counted in empty ones. The pause is a real one, so that the
# scoring thread gets the interpreter lock.
MAX_EFFORT, LINE_EFFORT, PAUSE_S = 4096, 15, 0.001
RETRY_S = 0.1  # at least, between two tries to register what was refused
STREAM_COPIES = 4  # of queued lines, in memory: read ahead, as bytes, as texts, and on their way to Redis
MAX_ERRORS = 20  # listed in a response
QUIET_S = 1.0  # lines that were read wait no longer for more
# A stream must progress by this many bytes in this time. Connections have about the same bound, with somewhat more
# time, but end without saying what is registered.
LEAST_BYTES, PATIENCE_S = 4096, 8.0


def memory_of_stream(max_line_bytes: int) -> int:
    """The most bytes of memory that a stream takes."""
    return STREAM_COPIES * (max_line_bytes + BYTES_AT_ONCE)


async def register_lines(service: Service, request: Request, client: Client) -> RegisterResponse:
    """Registers a stream of lines. An error that ends it says how many lines were registered before."""
    upload, body = _Upload(service, client), _Body(request)

    async def flush() -> None:
        await unless_gone(body.hung_up(), upload.flush())

    effort = 0
    try:
        async for line in _lines(body, service.max_line_bytes):
            if line is not None:
                if len(line) > service.max_line_bytes:
                    await flush()  # the lines before it
                    raise InputTooLarge(
                        f"a line is longer than {service.max_line_bytes} bytes; end each candidate with a newline"
                    )
                upload.add(line)
                effort += LINE_EFFORT if line else 1
            if upload.is_due or service.stopping.is_set():
                await flush()
            if effort >= MAX_EFFORT:  # a chunk may hold thousands of lines without a wait, or with short ones
                await asyncio.sleep(PAUSE_S)
                effort = 0
            if service.stopping.is_set():
                raise NotReady(STOPPING)
        await flush()
    except BandrankError as error:
        raise error.saying(f"{error} ({upload.progress})") from error
    finally:
        body.close()
    return upload.answer


class _Upload:
    """The lines of a stream, registered in parts. answer: what has become of them so far."""

    def __init__(self, service: Service, client: Client) -> None:
        self.answer = RegisterResponse(registered=0, encoded=0)
        self._service, self._client = service, client
        self._num_lines = 0
        self._lines_done = self._errors_done = 0  # up to the last flush
        self._queued: list[RegisteredCandidate] = []
        self._queued_bytes = 0
        self._since = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the queued candidates should be registered before more are read."""
        full = len(self._queued) == LINES_AT_ONCE or self._queued_bytes >= BYTES_AT_ONCE
        return full or (bool(self._queued) and time.monotonic() - self._since >= QUIET_S)

    @property
    def progress(self) -> str:
        """How many lines are registered, and which of them could not be read."""
        unread = ""
        if self._errors_done:
            first = self.answer.errors[0]
            unread = f" but for {self._errors_done} that could not be read, such as line {first.line}: {first.error}"
        return f"the first {self._lines_done} lines are registered{unread}"

    def add(self, line: bytes) -> None:
        """Queues the candidate of the next line, if it has one that can be read."""
        self._num_lines += 1
        if not line.strip():
            return
        try:
            num_values(line)  # few enough
            self._queued.append(validated(RegisteredCandidate, load(line)))
            self._queued_bytes += len(line)
        except InvalidInput as error:
            self.answer.num_errors += 1
            if len(self.answer.errors) < MAX_ERRORS:
                self.answer.errors.append(LineError(line=self._num_lines, error=str(error)))

    async def flush(self) -> None:
        """Registers the queued candidates. It waits while the service is overloaded, and the stream is not read
        meanwhile.
        """
        texts = {candidate.id: candidate.whole for candidate in self._queued}  # the last one of an id counts
        while True:
            try:
                await self._service.registry.register(texts, client=self._client, on_encoded=self._count)
                break
            except Overloaded as error:
                if self._service.stopping.is_set():
                    raise
                with suppress(TimeoutError):  # the service is not stopping
                    await asyncio.wait_for(self._service.stopping.wait(), max(RETRY_S, error.retry_after_s))
        self.answer.registered += len(texts)
        self._lines_done, self._errors_done = self._num_lines, self.answer.num_errors
        self._queued, self._queued_bytes = [], 0
        self._since = time.monotonic()

    def _count(self, encoded: int) -> None:
        self.answer.encoded += encoded  # also before an error: the next try finds these in the cache


async def _lines(body: "_Body", max_bytes: int) -> AsyncIterator[bytes | None]:
    """The body's lines; None whenever no more came for a while. Raises TooSlow.

    A line longer than `max_bytes` is the last, and is read only as far as it takes to see that.
    """
    rest = bytearray()
    async for chunk in body.chunks():
        if chunk is None:
            yield None
            continue
        *complete, last = chunk.split(b"\n")  # `rest` has no newline in it, and is not searched again
        for part in complete:
            rest += part
            yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > max_bytes:
            break
    yield bytes(rest)


class _Body:
    """The body of a request, some of which may be read ahead: only what is read says that a client hung up."""

    def __init__(self, request: Request) -> None:
        self._request, self._stream = request, request.stream()
        self._ahead = bytearray()
        self._coming: asyncio.Future[bytes | None] | None = None

    async def chunks(self) -> AsyncIterator[bytes | None]:
        """The chunks as they come, and None after each QUIET_S in which none does. Raises TooSlow."""
        progress = _Progress()
        while True:
            if not self._ahead:
                coming, started = self._next(), time.monotonic()
                await asyncio.wait([coming], timeout=QUIET_S)
                progress.waited(time.monotonic() - started)
                if not coming.done():
                    yield None  # `hung_up` may read meanwhile
                    progress.check()
                    continue
                if (chunk := coming.result()) is None:
                    return
                self._coming = None
                self._ahead += chunk
            chunk = bytes(self._ahead)
            self._ahead.clear()
            progress.received(len(chunk))
            yield chunk
            progress.check()

    async def hung_up(self) -> bool:
        """Waits until the client hangs up; never returns if it first sends more than can be read ahead."""
        while len(self._ahead) < BYTES_AT_ONCE:
            coming = self._next()
            await asyncio.wait([coming])
            if coming.exception() is not None:
                return True
            if (chunk := coming.result()) is None:
                return await hung_up(self._request)
            self._coming = None
            self._ahead += chunk
        never: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return await never

    def close(self) -> None:
        """Reads no more."""
        if self._coming is not None and not self._coming.cancel():
            self._coming.exception()  # retrieved, or asyncio would log it

    def _next(self) -> "asyncio.Future[bytes | None]":
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._read())
        return self._coming

    async def _read(self) -> bytes | None:
        """The next chunk that has bytes; None at the end."""
        async for chunk in self._stream:
            if chunk:
                return chunk
        return None


class _Progress:
    """The number of bytes that came in the last PATIENCE_S spent waiting for them."""

    def __init__(self) -> None:
        self._now = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        self._num_bytes = 0

    def waited(self, seconds: float) -> None:
        """Counts time spent waiting for the stream."""
        self._now += seconds
        while self._recent and self._recent[0][0] <= self._now - PATIENCE_S:
            self._num_bytes -= self._recent.popleft()[1]

    def received(self, num_bytes: int) -> None:
        """Counts a chunk."""
        self._recent.append((self._now, num_bytes))
        self._num_bytes += num_bytes

    def check(self) -> None:
        """Raises TooSlow if too little came."""
        if self._now >= PATIENCE_S and self._num_bytes < LEAST_BYTES:
            raise TooSlow(f"less than {LEAST_BYTES} bytes came in {PATIENCE_S:g} s; send more lines at a time")
