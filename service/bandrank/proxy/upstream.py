"""The search engine behind the proxy; the only file that imports the HTTP client.

httpcore2 sends the bytes of a target and of headers as they are given, adds none, and hands the body of an answer on as
it came, compressed or not. It reads no proxy from the environment and follows no redirect.
"""

import logging
import ssl
import traceback
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import httpcore2

from bandrank.engine.clients import Client
from bandrank.errors import (
    BadGateway,
    BadSetting,
    BandrankError,
    GatewayTimeout,
    InvalidInput,
    Overloaded,
    ShareUsed,
    Unreachable,
)
from bandrank.metrics import Metrics
from bandrank.proxy.headers import Headers
from bandrank.proxy.upstream_slots import UpstreamSlots
from bandrank.settings import Settings

log = logging.getLogger(__name__)

CONNECT_S = 5.0  # to get a slot, and to open a connection
KEEP_ALIVE_S = 30.0
STATUSES = range(200, 600)
FAILURES = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError)


@dataclass(frozen=True)
class UpstreamAnswer:
    """The upstream's status and headers, and its body in the parts in which it comes."""

    status: int
    headers: Headers
    parts: AsyncIterator[bytes]


@dataclass(frozen=True)
class Address:
    """Where the search engine is. url: without a target.  host: as requests name it.  prefix: before each target."""

    url: httpcore2.URL
    host: bytes
    prefix: bytes

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The address that the settings name. Raises BadSetting."""
        url = urlsplit(settings.proxy_upstream)
        if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
            raise BadSetting("proxy_upstream", "must be the address of a search engine, as in http://localhost:9200")
        if url.username is not None or url.password is not None:
            raise BadSetting("proxy_upstream", "must have no credentials: those of the clients are passed on")
        try:
            port, host, path = url.port, url.netloc.encode("ascii"), url.path.encode("ascii")
        except ValueError as error:
            raise BadSetting("proxy_upstream", f"cannot be used: {error}") from None
        return cls(httpcore2.URL(scheme=url.scheme, host=url.hostname, port=port), host, path.rstrip(b"/"))


class Upstream:
    """Sends requests to the one address of the settings. Used from one event loop."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Raises BadSetting for an address or a certificate that cannot be used."""
        self._address = Address.of(settings)
        self._timeout_s = settings.proxy_timeout_s
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=trust(self._address, settings.proxy_ca),
            max_connections=settings.proxy_connections,
            keepalive_expiry=KEEP_ALIVE_S,
        )
        self._slots = UpstreamSlots(settings.proxy_connections)
        self._failures = metrics.proxy.upstream_failures
        self._reached = True

    @property
    def host(self) -> bytes:
        """The address as requests name it."""
        return self._address.host

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: AsyncIterable[bytes] | bytes,
        *,
        client: Client,
        timeout_s: float | None = None,
    ) -> AsyncIterator[UpstreamAnswer]:
        """Sends a request, its body as it comes, and yields the answer. When the block ends, the connection is kept if
        all of the answer was read, else closed.

        client: whose share of the connections it counts against.
        timeout_s: how long the upstream may send and take nothing; None for the setting.
        Raises BadGateway, GatewayTimeout, Overloaded and InvalidInput, also while the parts are read, and what `body`
        raises; Unreachable and Overloaded before the upstream has seen the request.
        """
        silence_s = self._timeout_s if timeout_s is None else timeout_s
        timeouts = {"connect": CONNECT_S, "pool": CONNECT_S, "read": silence_s, "write": silence_s}
        at = self._address.url
        url = httpcore2.URL(scheme=at.scheme, host=at.host, port=at.port, target=self._address.prefix + target)
        request = httpcore2.Request(method, url, headers=headers, content=body, extensions={"timeout": timeouts})
        try:
            await self._slots.take(client, patience_s=CONNECT_S)
        except Overloaded as error:
            self._failures.labels("share" if isinstance(error, ShareUsed) else "busy").inc()
            raise
        try:
            try:
                response = await self._pool.handle_async_request(request)
            except FAILURES as error:
                raise self._explained(error) from error
            try:
                if response.status not in STATUSES:
                    raise BadGateway(f"the search engine answered with status {response.status}")
                self._notice(reached=True)
                yield UpstreamAnswer(response.status, response.headers, self._parts(response))
            finally:
                await response.aclose()
        finally:
            self._slots.release(client)

    async def close(self) -> None:
        """Closes all connections."""
        await self._pool.aclose()

    async def _parts(self, response: httpcore2.Response) -> AsyncIterator[bytes]:
        try:
            async for part in response.aiter_stream():
                yield part
        except FAILURES as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> BandrankError:
        """Counts a failure of the HTTP client, and returns our error for it, since the client's may name addresses.

        The frames below let go of what they hold: context managers that replaced an error would keep it, and with it
        the request and the answer, until the next collection of cycles.
        """
        below: BaseException | None = error
        while below is not None:
            traceback.clear_frames(below.__traceback__)
            below = below.__context__
        if isinstance(error, httpcore2.ConnectError | httpcore2.ConnectTimeout):
            self._failures.labels("unreachable").inc()
            self._notice(reached=False, error=error)
            return Unreachable("the search engine cannot be reached")
        if isinstance(error, httpcore2.TimeoutException):
            self._failures.labels("timeout").inc()
            return GatewayTimeout("the search engine did not answer in time")
        if isinstance(error, httpcore2.LocalProtocolError):
            return InvalidInput("the target, the headers or the length of the request are not valid HTTP")
        self._failures.labels("broken").inc()
        return BadGateway("the search engine ended the connection, or did not answer in HTTP")

    def _notice(self, *, reached: bool, error: Exception | None = None) -> None:
        """Logs when the upstream is lost and found: once each, however many requests notice."""
        if reached is not self._reached:
            self._reached = reached
            if reached:
                log.info("the search engine answers again")
            else:
                log.warning("the search engine cannot be reached: %s", error)


def trust(address: Address, path: str) -> ssl.SSLContext | None:
    """A TLS context that trusts the system's authorities, or those in a file; None for an address without TLS.

    Raises BadSetting.
    """
    if address.url.scheme != b"https":
        return None
    try:
        return ssl.create_default_context(cafile=path or None)
    except OSError as error:  # ssl.SSLError is one, too
        raise BadSetting("proxy_ca", f"must be a file of certificates in PEM: {path}: {error.strerror}") from None
