"""A server that takes several new connections in each round of its event loop.

uvloop takes one per round, so a probe behind two hundred connections would wait until two hundred rounds had each begun
the work of one. Once connections are taken, probes can pass them (`pace.py`).
"""

import asyncio
import os
import socket
from functools import partial
from typing import Any

import uvicorn

AT_ONCE = 16  # a few milliseconds, as long as other work may begin in a round


class AcceptingServer(uvicorn.Server):
    """Listens on every socket AT_ONCE times over, so that a round takes that many connections from it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        protocol: Any = self.config.http_protocol_class  # for uvicorn's types it takes no arguments
        make = partial(protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        for listener in [listener for server in self.servers for listener in server.sockets]:
            for _ in range(AT_ONCE - 1):
                again = socket.socket(fileno=os.dup(listener.fileno()))
                server = await loop.create_server(make, sock=again, backlog=self.config.backlog)
                self.servers.append(server)
