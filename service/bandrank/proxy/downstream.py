"""A client's request, read as it comes or kept to be sent twice, and the answer to it."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from bandrank.api.addresses import client_at
from bandrank.api.responses import PART_BYTES
from bandrank.engine.memory import Account
from bandrank.proxy.headers import Headers


class Downstream:
    """One request of a client.

    sender: whose share it counts against.  started: whether the answer has begun, so that no other can be given.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.raw_path: bytes = scope["raw_path"]
        self.query_string: bytes = scope["query_string"]
        self.headers: Headers = scope["headers"]
        self.address: str = scope["client"][0] if scope.get("client") else ""
        self.sender = client_at(scope.get("client"))
        self.started = False
        self._receive, self._send = receive, send
        self._kept: list[bytes] = []
        self._all_read = asyncio.Event()
        self._ended = False  # a client that hangs up after that has its whole answer

    @property
    def target(self) -> bytes:
        """The path with the query string, as they came."""
        return self.raw_path + (b"?" + self.query_string if self.query_string else b"")

    async def read(self, max_bytes: int, account: Account) -> bytes | None:
        """Reads and keeps the whole body; if it exceeds `max_bytes`, keeps what has come and returns None.

        Raises ClientDisconnect, and what `Account.hold` raises.
        """
        size = 0
        async for part in self._rest():
            size += len(part)
            self._kept.append(part)
            account.hold(len(part))
            if size > max_bytes:
                return None
        return b"".join(self._kept)

    async def stream(self) -> AsyncIterator[bytes]:
        """The body: what was kept, and then the rest as it comes. Raises ClientDisconnect."""
        for part in self._kept:
            yield part
        async for part in self._rest():
            yield part

    async def hung_up(self) -> bool:
        """Waits until the body was read and the connection ends; returns whether the answer had yet to end."""
        await self._all_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        return not self._ended

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begins the answer."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def hand_on(self, part: bytes) -> None:
        """Sends a part of the answer's body, no faster than the client reads."""
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self) -> None:
        """Ends the answer."""
        self._ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Sends a whole answer; `headers` state its length."""
        await self.start(status, headers)
        for start in range(0, len(body), PART_BYTES):
            await self.hand_on(body[start : start + PART_BYTES])
        await self.end()

    async def _rest(self) -> AsyncIterator[bytes]:
        while not self._all_read.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if not message.get("more_body", False):
                self._all_read.set()
            if part := message.get("body", b""):
                yield part
