"""The real search proxy, behind uvicorn with bounded connections, in a thread of this process."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from support.plain_http import client
from support.scorers import lookup
from support.scripted_server import read_message
from support.server import Scrape
from support.serving import files_of
from support.tasks import HANG_S, wait_until
from support.threaded import served

from bandrank.api.connections import ConnectionLimits, Connections
from bandrank.api.hardening import hardening
from bandrank.api.service import Service
from bandrank.errors import BadSetting
from bandrank.models.scorer import Scorer
from bandrank.proxy.app import METRICS, create_proxy
from bandrank.serving import assemble
from bandrank.settings import Settings

BARE = {"headers": [], "date_header": False}  # as in `bandrank proxy`


class Tracked:
    """An ASGI app that knows how many requests it has not finished: each is counted after its answer has been sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.unfinished = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] == "http"
        self.unfinished += is_request
        try:
            await self._app(scope, receive, send)
        finally:
            self.unfinished -= is_request


@dataclass(frozen=True)
class Proxied:
    """A proxy that listens. service: the re-ranker inside it."""

    address: tuple[str, int]
    service: Service
    app: Tracked

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.address[1]}"

    def client(self, **more: Any) -> httpx.Client:
        """A client with connections of its own."""
        return client(self.url, **more)

    def send(self, request: bytes) -> bytes:
        """The bytes of the answer to the bytes of a request."""
        with socket.create_connection(self.address, timeout=HANG_S) as connection:
            connection.sendall(request)
            return read_message(connection.recv)

    def count(self, name: str, **labels: str) -> float:
        return self.value(f"{name}_total", **labels)

    def wait_for_count(self, name: str, value: float, **labels: str) -> None:
        """Waits until a counter has this value, because a request is counted after its answer has been sent."""
        wait_until(lambda: self.count(name, **labels) == value)

    def wait_until_finished(self) -> None:
        """Waits until every request is counted, so that none counts in the next test."""
        wait_until(lambda: self.app.unfinished == 0)

    def value(self, name: str, **labels: str) -> float:
        """The value of a gauge, or of any series by its whole name."""
        with self.client() as client:
            return Scrape(client.get(METRICS).text).value(f"bandrank_{name}", **labels)


@contextmanager
def proxied(
    upstream: str,
    *,
    scorer: Scorer | None = None,
    fast: Scorer | None = None,
    shadow: Scorer | None = None,
    **settings: Any,
) -> Iterator[Proxied]:
    """Runs a proxy in front of an upstream.

    scorer: by default one that knows `man` (1.5), `he` (4) and `she` (-2).  fast, shadow: as in `running_app`.
    """
    chosen = Settings(device="cpu", proxy_upstream=upstream, **settings)
    main = files_of(scorer or lookup(man=1.5, he=4.0, she=-2.0), fast=fast)
    files = [replace(main, first_stage_weight=chosen.first_stage_weight)]
    if shadow is not None:
        files.append(replace(files_of(shadow, name="shadow"), served=False, shadow=True))
    serving = assemble(files, chosen)
    service = Service(serving, chosen)
    try:
        app = Tracked(create_proxy(service, chosen))
    except BadSetting:
        asyncio.run(service.close())
        raise
    connections = Connections(ConnectionLimits(max_connections=50, reserved=4), service.metrics)
    http: Any = connections.protocol()
    config = uvicorn.Config(app, http=http, log_config=None, access_log=False, **(hardening(chosen) | BARE))
    with served(config) as address:
        yield Proxied(address, service, app)
