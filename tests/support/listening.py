"""The real application behind uvicorn with bounded connections, in a thread of this process, on a free port."""

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from support.plain_http import client
from support.scorers import lookup
from support.server import Scrape
from support.serving import files_of
from support.tasks import HANG_S
from support.threaded import served

from bandrank.api.app import create_app
from bandrank.api.certificate import served_certificate
from bandrank.api.connections import ConnectionLimits, Connections
from bandrank.api.hardening import hardening
from bandrank.api.service import Service
from bandrank.api.tls import over_tls
from bandrank.serving import LoadedScorers, assemble
from bandrank.settings import Settings

PATIENCE_S = 0.4


@dataclass(frozen=True)
class Listening:
    """A service that listens. trust: the TLS context of its clients, None for plain HTTP."""

    address: tuple[str, int]
    trust: ssl.SSLContext | None
    connections: Connections

    @property
    def url(self) -> str:
        scheme = "http" if self.trust is None else "https"
        return f"{scheme}://localhost:{self.address[1]}"

    def client(self, **more: Any) -> httpx.Client:
        """A client with connections of its own."""
        return client(self.url, **({} if self.trust is None else {"verify": self.trust}), **more)

    @contextmanager
    def connection(self, sent: bytes = b"") -> Iterator[socket.socket]:
        """Opens a connection, with a handshake if the service speaks TLS, and sends these bytes."""
        with socket.create_connection(self.address, timeout=HANG_S) as plain:
            connection = plain if self.trust is None else self.trust.wrap_socket(plain, server_hostname="localhost")
            with connection:
                connection.sendall(sent)
                yield connection

    def is_alive(self) -> bool:
        """Whether /healthz answers 200."""
        with self.client() as client:
            return client.get("/healthz").status_code == httpx.codes.OK

    def scrape(self) -> Scrape:
        with self.client() as client:
            return Scrape(client.get("/metrics").text)

    def refused(self, reason: str) -> float:
        """The number of connections that were closed for this reason."""
        return self.scrape().value("bandrank_refused_connections_total", reason=reason)


@contextmanager
def listening(
    settings: Settings | None = None,
    *,
    files: Sequence[LoadedScorers] = (),
    trust: ssl.SSLContext | None = None,
    loop: Any = "auto",
    keep_alive_s: int = 600,
    **limits: float,
) -> Iterator[Listening]:
    """Runs a service with these settings and limits on connections. files: its models.  loop: as in uvicorn.Config."""
    settings = settings or Settings(device="cpu")
    serving = assemble(files or [files_of(lookup(man=1.5))], settings)
    bounds = ConnectionLimits(**{"patience_s": PATIENCE_S, "max_connections": 50, "reserved": 4} | limits)  # type: ignore[arg-type]
    connections = Connections(bounds, serving.models.default.engine.metrics)
    tls = served_certificate(settings)
    http: Any = connections.protocol() if tls is None else over_tls(connections, tls)
    app = create_app(Service(serving, settings))
    told = {"log_config": None, "access_log": False, "timeout_keep_alive": keep_alive_s} | hardening(settings)
    with served(uvicorn.Config(app, http=http, loop=loop, **told)) as address:
        yield Listening(address, trust, connections)


def ended_with(connection: socket.socket) -> bytes:
    """What the service sends before it closes the connection; empty if it closes without a word."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except (ConnectionResetError, ssl.SSLError):  # an aborted connection does not end properly
        pass
    return received
