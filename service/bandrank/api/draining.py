"""A server that goes on answering for a while after it was told to stop."""

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from types import FrameType

from uvicorn import Config

from bandrank.api.accepting import AcceptingServer

log = logging.getLogger(__name__)


class DrainingServer(AcceptingServer):
    """Closes its port `drain_s` seconds after the first SIGTERM or SIGINT, or at the second; until it listens, either
    ends the process.

    A load balancer that checks readiness has this time to send requests elsewhere.  scheme: http or https.
    on_drain: called when it begins.  on_close: called before the port is closed.
    """

    def __init__(
        self, config: Config, *, scheme: str, drain_s: float, on_drain: Callable[[], None], on_close: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._scheme = scheme
        self._drain_s = drain_s
        self._on_drain = on_drain
        self._on_close = on_close
        self._told = False
        self._closes_at = math.inf

    def _log_started_message(self, listeners: Sequence[socket.SocketType]) -> None:
        """Says where the server listens; uvicorn, which does not know of our TLS, would always say http."""
        addresses = [listener.getsockname()[:2] for listener in listeners]
        named = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses]
        log.info("listening on %s", " and ".join(f"{self._scheme}://{each}" for each in named))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.started:
            os._exit(0)  # nothing has been accepted, and models may still be tested
        if self._told or self._drain_s == 0:
            super().handle_exit(sig, frame)
        self._told = True  # the rest takes locks that the interrupted code may hold

    async def on_tick(self, counter: int) -> bool:
        if self._told and self._closes_at == math.inf:
            self._closes_at = time.monotonic() + self._drain_s
            self._on_drain()
        if time.monotonic() >= self._closes_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_close()
        await super().shutdown(sockets)
