"""HTTPS, on connections that are bounded from their first byte on.

uvicorn's own TLS shows a connection only after the handshake. Silent connections would be counted by nobody and kept
for a minute each, and of an unread answer only the part that is not encrypted yet would be seen.
"""

import asyncio
import logging
import math
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from bandrank.api.certificate import ServedCertificate
from bandrank.api.connections import BoundedProtocol, Connections

log = logging.getLogger(__name__)

T = TypeVar("T")


def over_tls(connections: Connections, certificate: ServedCertificate) -> Callable[..., "Handshake"]:
    """A factory that makes uvicorn's protocol for each connection. Metrics show when the certificate expires."""
    make = connections.protocol()
    connections.metrics.tls_certificate_expiry.set_function(lambda: certificate.expires)

    def greet(*args: Any, **kwargs: Any) -> Handshake:
        return Handshake(connections, certificate.context, make(*args, **kwargs))

    return greet


class Handshake(asyncio.Protocol):
    """A connection during its TLS handshake, which is owed nothing so far."""

    def __init__(self, connections: Connections, context: ssl.SSLContext, protocol: BoundedProtocol) -> None:
        self._connections = connections
        self._context = context
        self._protocol = protocol
        self._early = bytearray()  # what came with the last message of the handshake

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as for all of TCP
        self._wire = transport
        if not self._connections.add(self, transport.get_extra_info("peername")):
            return
        loop, patience_s = self._protocol.loop, self._connections.limits.patience_s
        # The first step, which makes TLS the reader of the connection, is taken at once: before a task took it, the
        # first bytes might have been read and lost.
        begun = _Begun(
            loop.start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=patience_s,
                ssl_shutdown_timeout=math.inf,  # the protocol sees to it, and cuts off no answer that is read slowly
            )
        )
        self._agreement = loop.create_task(self._agree(begun))
        self._protocol.connections.add(self)  # type: ignore[arg-type]  # so that a stop calls `shutdown`

    def data_received(self, data: bytes) -> None:
        self._early += data

    def give_up(self, reason: str) -> None:
        """Closes the connection at once."""
        self._connections.refuse(self, reason)
        self._wire.abort()

    def shutdown(self) -> None:
        """Ends the connection when the server stops."""
        self._wire.abort()

    async def _agree(self, agreement: Awaitable[asyncio.Transport | None]) -> None:
        """Hands the connection to its protocol, unless it is lost or the handshake fails or takes too long."""
        transport = None
        try:
            transport = await agreement
        except OSError as error:  # TLS errors and timeouts are among them
            log.debug("no agreement on TLS: %s", error)
            if self in self._connections.open:
                self.give_up("handshake")
        self._connections.discard(self)
        self._protocol.connections.discard(self)
        if transport is None or self._wire.is_closing():
            return
        transport.set_protocol(self._protocol)
        self._protocol.wire = self._wire
        self._protocol.connection_made(transport)
        if self._early:
            self._protocol.data_received(bytes(self._early))


class _Begun(Generic[T]):
    """A coroutine whose first step is taken, to be awaited like any other."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._waits_for = coroutine.send(None)

    def __await__(self) -> Generator[Any, Any, T]:
        while True:
            try:
                try:
                    sent = yield self._waits_for
                except BaseException as error:  # noqa: BLE001 - passed on, be it a cancellation
                    self._waits_for = self._coroutine.throw(error)
                else:
                    self._waits_for = self._coroutine.send(sent)
            except StopIteration as end:
                result: T = end.value
                return result
