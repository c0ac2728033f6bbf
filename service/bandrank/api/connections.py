"""HTTP connections with bounds: on their number, on the size of headers, and on how slow a client may be.

uvicorn bounds none of these with its fast parser: a connection that says nothing, sends its headers byte by byte or
never reads its answer would be kept for ever.
"""

import asyncio
import logging
import resource
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from bandrank.api.upgrades import WithoutUpgrades
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)

RESERVED_FILES = 128  # for Redis, logs, model files and the interpreter itself
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})


@dataclass(frozen=True)
class ConnectionLimits:
    """max_connections: beyond them only probes are answered, on up to `reserved` more.  max_header_bytes, max_headers:
    of a request, its first line included.  patience_s: within which the headers have to be there, and how long a body
    or an answer may stay without `least_bytes` of progress.
    """

    max_connections: int = 1024
    reserved: int = 16
    max_header_bytes: int = 32 * 1024
    max_headers: int = 100
    patience_s: float = 10.0
    least_bytes: int = 4 * 1024


class Phase(Enum):
    """What a connection waits for: a request's headers, its body, its answer, or the next request."""

    HEADERS = auto()
    BODY = auto()
    ANSWER = auto()
    IDLE = auto()


class Connections:
    """The connections of a server. Used from the event loop."""

    def __init__(self, limits: ConnectionLimits, metrics: Metrics) -> None:
        files = allow_files(limits.max_connections + limits.reserved + RESERVED_FILES)
        most = min(limits.max_connections, files - RESERVED_FILES - limits.reserved)
        if most < limits.max_connections:
            log.warning(
                "connections are bounded by the limit on open files: %d instead of %d", most, limits.max_connections
            )
        self.limits = limits
        self.max_connections = max(1, most)
        self.metrics = metrics
        self.open: set[BoundedProtocol] = set()
        self.silent: OrderedDict[BoundedProtocol, None] = OrderedDict()  # those that nothing is owed to, oldest first
        metrics.connections.set_function(lambda: len(self.open))

    def protocol(self) -> Callable[..., "BoundedProtocol"]:
        """What uvicorn makes for each connection."""

        def make(*args: Any, **kwargs: Any) -> BoundedProtocol:
            return BoundedProtocol(self, *args, **kwargs)

        return make

    def make_room(self) -> None:
        """Closes the connection that has been silent for longest, if there are too many."""
        if len(self.open) > self.max_connections and self.silent:
            oldest = next(iter(self.silent))
            oldest.give_up("too_many")

    @property
    def full(self) -> bool:
        return len(self.open) > self.max_connections


def allow_files(count: int) -> int:
    """Raises the process's limit on open files to `count` if it may; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return count if soft == resource.RLIM_INFINITY else soft


class BoundedProtocol(WithoutUpgrades):
    """A connection that is closed when it asks for too much, or for too long."""

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = connections
        self._limits = connections.limits
        self._header_bytes = 0
        self._received = self._received_before = self._unsent = 0
        self._check: asyncio.TimerHandle | None = None
        self._phase = Phase.HEADERS
        self._since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        everyone = self._connections
        everyone.open.add(self)
        self._enter(Phase.HEADERS)
        everyone.make_room()
        everyone.silent[self] = None
        if len(everyone.open) > everyone.max_connections + self._limits.reserved:
            self.give_up("too_many")
            return
        if everyone.full:
            self.app = OnlyProbes(self.app)
        self._check = self.loop.call_later(self._limits.patience_s, self._watch)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.open.discard(self)
        self._connections.silent.pop(self, None)
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._phase is not Phase.ANSWER:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._phase in {Phase.HEADERS, Phase.BODY} and self._header_bytes > self._limits.max_header_bytes:
            self._refuse(431, "headers")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._phase is not Phase.HEADERS:
            self._enter(Phase.HEADERS)
        self._connections.silent.pop(self, None)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) == self._limits.max_headers + 1:
            self._refuse(431, "headers")

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            return
        self._header_bytes = 0
        self._enter(Phase.BODY)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0  # what comes between chunks, and after the last one, counts as headers
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.transport.is_closing():
            return
        super().on_message_complete()
        self._enter(Phase.ANSWER)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is Phase.ANSWER and not self.pipeline:
            self._enter(Phase.IDLE)
            self._connections.silent[self] = None

    def give_up(self, reason: str) -> None:
        """Closes the connection at once, whatever is unsent."""
        self._connections.metrics.refused_connections.labels(reason).inc()
        self._connections.open.discard(self)
        self._connections.silent.pop(self, None)
        self.transport.abort()

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since = phase, self.loop.time()
        self._received_before = self._received

    def _watch(self) -> None:
        """Called every `patience_s`: ends a connection whose client is too slow."""
        limits = self._limits
        waited = self.loop.time() - self._since >= limits.patience_s
        received = self._received - self._received_before
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent > self._unsent - limits.least_bytes and self._unsent:
            self.give_up("unread_answer")
            return
        self._unsent, self._received_before = unsent, self._received
        if waited and self._phase is Phase.HEADERS:
            self._refuse(408, "slow_headers")
        elif waited and self._phase is Phase.BODY and received < limits.least_bytes and not self.flow.read_paused:
            self._refuse(408, "slow_body")
        if not self.transport.is_closing():
            self._check = self.loop.call_later(limits.patience_s, self._watch)

    def _refuse(self, status: int, reason: str) -> None:
        """Answers with a status, if nothing has been answered yet, and closes the connection."""
        if self.transport.is_closing():
            return
        self._connections.metrics.refused_connections.labels(reason).inc()
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(STATUS_LINE[status] + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()


class OnlyProbes:
    """Answers probes, and everything else with 503."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), (b"retry-after", b"1")]
        said = b"too many connections; keep fewer open, or try again"
        body = b'{"message":"%b","detail":"%b","error":"%b","error_type":"too_many_connections"}' % (said, said, said)
        await send(
            {
                "type": "http.response.start",
                "status": 503,
                "headers": [*headers, (b"content-length", b"%d" % len(body))],
            }
        )
        await send({"type": "http.response.body", "body": body})
