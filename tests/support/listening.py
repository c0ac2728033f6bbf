"""The real application behind uvicorn with bounded connections, in a thread of this process, on a free port."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import uvicorn
from support.scorers import lookup
from support.server import Scrape
from support.serving import files_of
from support.tasks import HANG_S

from bandrank.api.app import create_app
from bandrank.api.connections import ConnectionLimits, Connections
from bandrank.api.service import Service
from bandrank.serving import assemble
from bandrank.settings import Settings

PATIENCE_S = 0.4


@dataclass(frozen=True)
class Listening:
    """A service that listens."""

    address: tuple[str, int]

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    @contextmanager
    def connection(self, sent: bytes = b"") -> Iterator[socket.socket]:
        """A connection on which this was sent."""
        with socket.create_connection(self.address, timeout=HANG_S) as connection:
            connection.sendall(sent)
            yield connection

    def is_alive(self) -> bool:
        """Whether a probe is answered."""
        return httpx.get(f"{self.url}/healthz", timeout=HANG_S, trust_env=False).status_code == httpx.codes.OK

    def refused(self, reason: str) -> float:
        """How many connections were closed for that reason."""
        text = httpx.get(f"{self.url}/metrics", trust_env=False).text
        return Scrape(text).value("bandrank_refused_connections_total", reason=reason)


@contextmanager
def listening(**limits: int) -> Iterator[Listening]:
    """A service with these limits on its connections."""
    settings = Settings(device="cpu")
    serving = assemble([files_of(lookup(man=1.5))], settings)
    bounds = ConnectionLimits(**{"patience_s": PATIENCE_S, "max_connections": 50, "reserved": 4} | limits)  # type: ignore[arg-type]
    connections = Connections(bounds, serving.models.default.engine.metrics)
    app = create_app(Service(serving, settings))
    config = uvicorn.Config(app, http=connections.protocol(), log_config=None, access_log=False)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield Listening(listener.getsockname())
        finally:
            server.should_exit = True
            thread.join(HANG_S)
    assert not thread.is_alive()


def ended_with(connection: socket.socket) -> bytes:
    """What the service sends before it closes the connection; empty if it closes without a word."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received
