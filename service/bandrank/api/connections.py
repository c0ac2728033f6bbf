"""HTTP connections with bounds: on their number, on the size of headers, and on how slow a client may be.

uvicorn has none of these with its fast parser: it would forever keep a connection that says nothing, sends its headers
byte by byte or never reads its answer.
"""

import asyncio
import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from bandrank.api.addresses import client_at
from bandrank.api.connection_slots import Connection, ConnectionSlots
from bandrank.api.half_closed import INTERIM, HangUps
from bandrank.api.hardening import PAGE_PATH, headers_of_page
from bandrank.api.lingering import send_lingering
from bandrank.api.only_probes import OnlyProbes
from bandrank.api.unchunked import send_unchunked
from bandrank.api.upgrades import WithoutUpgrades
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)

RESERVED_FILES = 128  # for Redis, logs, model files and the interpreter itself


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of connections.

    max_connections: an address has its share of them. Beyond them only probes are answered, on up to `reserved` more
    connections, which are shared in the same way.  max_header_bytes, max_headers: of a request, its first line
    included.
    patience_s: seconds within which the headers have to arrive, and in which a body or an answer has to progress by
    `least_bytes`.
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
    """The connections of a server. Used from the event loop.

    draining: whether each connection ends with its next answer, so that clients go elsewhere and no connection is left
    on which a request could come at the moment of closing.
    """

    def __init__(self, limits: ConnectionLimits, metrics: Metrics, *, outgoing: int = 0) -> None:
        """outgoing: the connections that requests open in turn, at most one each, such as to a search engine."""
        beside = limits.reserved + RESERVED_FILES
        left = allow_files(limits.max_connections + outgoing + beside) - beside
        most = max(1, min(limits.max_connections, max(left - outgoing, left // 2)))
        if most < limits.max_connections:
            log.warning(
                "connections are bounded by the limit on open files: %d instead of %d", most, limits.max_connections
            )
        self.limits = limits
        self.metrics = metrics
        self.draining = False
        self.open: dict[Connection, ConnectionSlots] = {}
        self._slots, self._reserve = ConnectionSlots(most), ConnectionSlots(limits.reserved)
        self.hang_ups = HangUps()
        metrics.connections.set_function(lambda: len(self.open))

    def protocol(self) -> Callable[..., "BoundedProtocol"]:
        """A factory that makes uvicorn's protocol for each connection."""
        return partial(BoundedProtocol, self)

    def add(self, connection: Connection, peer: object) -> bool:
        """Counts a new connection from an address; closes it and returns False if there is no slot for it."""
        for slots in (self._slots, self._reserve):
            if slots.take(connection, client_at(peer)):
                self.open[connection] = slots
                return True
        connection.give_up("too_many")
        return False

    def is_reserve(self, connection: Connection) -> bool:
        """Whether a connection is beyond the limit, so that only probes are answered on it."""
        return self.open[connection] is self._reserve

    def set_idle(self, connection: Connection, *, idle: bool) -> None:
        """Says whether a connection, if it is still counted, is owed nothing from now on."""
        if (slots := self.open.get(connection)) is not None:
            slots.set_idle(connection, idle=idle)

    def discard(self, connection: Connection) -> None:
        """Stops counting a connection."""
        if (slots := self.open.pop(connection, None)) is not None:
            slots.release(connection)

    def refuse(self, connection: Connection, reason: str) -> None:
        """Stops counting a connection, and counts why."""
        self.metrics.refused_connections.labels(reason).inc()
        self.discard(connection)


def allow_files(count: int) -> int:
    """Raises the process's limit on open files to `count` if it may; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return count if soft == resource.RLIM_INFINITY else soft


class BoundedProtocol(WithoutUpgrades):
    """A connection that is closed when its client asks for too much or takes too long."""

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wire: asyncio.Transport | None = None  # below TLS, with encrypted bytes that are unsent
        self._connections = connections
        self._limits = connections.limits
        self._header_bytes = self._named_bytes = 0  # as they arrive, and in complete fields
        self._received = self._received_before = self._unsent = 0
        self._check: asyncio.TimerHandle | None = None
        self._phase = Phase.HEADERS
        self._since = self.loop.time()
        self._answering: RequestResponseCycle | None = None  # the first request that is owed an answer
        self._lingers = False  # until the end of a request that has been answered
        self._descriptor = -1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._enter(Phase.HEADERS)
        if not self._connections.add(self, transport.get_extra_info("peername")):
            return
        self._descriptor = transport.get_extra_info("socket").fileno()
        if self._connections.is_reserve(self):
            refused = self._connections.metrics.refused_connections.labels("too_many")
            self.app = OnlyProbes(self.app, on_refusal=refused.inc)
        self._check = self.loop.call_later(self._limits.patience_s, self._watch)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._connections.hang_ups.forget(self._descriptor)
        if self._check is not None:
            self._check.cancel()
        self._unset_keepalive_if_required()  # uvicorn keeps that of a reset one
        super().connection_lost(exc)
        if (owed := self._answering) is not None and not owed.response_complete:
            owed.disconnected = True  # uvicorn tells only the request that came last
            owed.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._phase is not Phase.ANSWER:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._phase in {Phase.HEADERS, Phase.BODY} and self._header_bytes > self._limits.max_header_bytes:
            self._refuse(431, "headers")

    def eof_received(self) -> bool | None:  # type: ignore[override]  # as in asyncio.Protocol
        """Keeps the connection open, by returning True, if its client may still wait for an answer to what it sent."""
        owed = self._answering if self._phase is Phase.ANSWER else None
        if owed is None or owed.scope["http_version"] != "1.1" or self.scheme == "https":
            return None
        if not owed.response_started:
            self.transport.write(INTERIM)
        self._connections.hang_ups.watch(self._descriptor, self.transport.abort)
        self.cycle.keep_alive = False  # of the last request
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()  # what ended before it in the same bytes has set one
        if self._phase is not Phase.HEADERS:
            self._enter(Phase.HEADERS)
        self._named_bytes = 0
        if not self.transport.is_closing():
            self._connections.set_idle(self, idle=False)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._named_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value.rstrip(b" \t"))  # the parser leaves blanks there (RFC 9112, 5)
        self._named_bytes += len(name) + len(value) + 4  # a colon, a space and the end of the line
        if len(self.headers) > self._limits.max_headers or self._named_bytes > self._limits.max_header_bytes:
            self._refuse(431, "headers")

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            return
        self._header_bytes = 0
        self._enter(Phase.BODY)
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is before:  # an offer of another protocol: the headers are read again without it
            return
        self.headers = [*self.headers]  # the request gets no trailers as headers (RFC 9110, 6.5.1)
        if self._connections.draining:
            if self.pipeline and not before.response_started:
                before.keep_alive = True  # until the request behind it is answered
            self.cycle.keep_alive = False
        if self.scope["http_version"] != "1.1":
            self.cycle.send = send_unchunked(self.cycle)  # type: ignore[method-assign,assignment]
        self.cycle.send = send_lingering(self.cycle, self._linger)  # type: ignore[method-assign,assignment]
        if self.scope.get("path") == PAGE_PATH:
            self.cycle.default_headers = headers_of_page(self.cycle.default_headers)
        if not self.pipeline:
            self._answering = self.cycle

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0  # what comes between chunks, and after the last one, counts as headers
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.transport.is_closing():
            return
        super().on_message_complete()
        if self._answering is not None:
            self._enter(Phase.ANSWER)
            return
        if self._lingers:
            self.transport.close()
            self._part_without_goodbye()
            return
        self._enter(Phase.IDLE)  # the answer did not need the body
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        self._answering = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._answering is None:
            if self._phase is Phase.ANSWER:
                self._enter(Phase.IDLE)
                self._part_without_goodbye()
            self._connections.set_idle(self, idle=True)  # even if the rest of an unneeded body still arrives

    def shutdown(self) -> None:
        """Ends the connection: with its next answer, if that is owed or some of the request's headers have come."""
        self._connections.draining = True
        begun = self._phase is Phase.HEADERS and self._header_bytes
        if not begun and not self.transport.is_closing():  # asyncio's TLS breaks if it is closed twice
            super().shutdown()
        self._part_without_goodbye()

    def send_400_response(self, msg: str) -> None:
        self._connections.metrics.refused_connections.labels("malformed").inc()
        if self._has_begun:
            self.transport.close()
        else:
            super().send_400_response(msg)
        self._connections.set_idle(self, idle=True)

    def give_up(self, reason: str) -> None:
        """Closes the connection at once, dropping unsent bytes."""
        self._connections.refuse(self, reason)
        self.transport.abort()

    @property
    def _has_begun(self) -> bool:
        """Whether an answer is under way, or the request whose body is read has been answered."""
        owed = self._answering or (self.cycle if self._phase is Phase.BODY else None)
        return owed is not None and owed.response_started

    def _linger(self) -> bool:
        """Whether the rest of an answered request is read before the connection ends: for `patience_s`, or somewhat
        longer, but not while the server stops.
        """
        self._enter(Phase.BODY)
        self._lingers = not self._connections.draining
        return self._lingers

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since = phase, self.loop.time()
        self._received_before = self._received

    def _watch(self) -> None:
        """Called every `patience_s`: ends a connection whose client is too slow."""
        limits = self._limits
        # Not for what the client may have sent already, behind a request that is owed an answer.
        waited = not self.flow.read_paused and self.loop.time() - self._since >= limits.patience_s
        received = self._received - self._received_before
        unsent = sum(layer.get_write_buffer_size() for layer in (self.transport, self.wire) if layer is not None)
        if unsent and unsent > self._unsent - limits.least_bytes and self._unsent:
            self.give_up("unread_answer")
            return
        self._unsent, self._received_before = unsent, self._received
        if waited and self._phase is Phase.HEADERS:
            self._refuse(408, "slow_headers")
        elif waited and self._phase is Phase.BODY and (self._lingers or received < limits.least_bytes):
            self._refuse(408, "slow_body")
        self._part_without_goodbye()
        self._check = self.loop.call_later(limits.patience_s, self._watch)  # also while it closes, for unsent bytes

    def _refuse(self, status: int, reason: str) -> None:
        """Answers with a status, unless an answer has begun, and closes the connection."""
        if self.transport.is_closing():
            return
        self._connections.metrics.refused_connections.labels(reason).inc()
        if not self._has_begun:
            headers = b"".join(b"%b: %b\r\n" % header for header in self.server_state.default_headers)
            self.transport.write(STATUS_LINE[status] + headers + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()
        self._connections.set_idle(self, idle=True)

    def _part_without_goodbye(self) -> None:
        """Ends a closed connection of which TLS has sent all: it waits for the client's goodbye, which few say."""
        if self.wire is not None and self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.wire.close()
