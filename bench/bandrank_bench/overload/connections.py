"""A light HTTP/1.1 client that sends prepared bytes and returns answers unparsed."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Response:
    """An unparsed answer. sent_s: when its request was handed to the connection, by the event loop's clock."""

    sent_s: float
    status: int
    headers: dict[str, str]
    body: bytes


class Connections:
    """Kept connections from one address, one per request in flight; an async context.

    source: the client's address, which distinguishes it; the loopback interface has all of 127.0.0.0/8.  host: of the
    service; if it is not on the loopback interface, `source` is ignored.
    """

    def __init__(self, port: int, source: str = HOST, host: str = HOST) -> None:
        self._host, self._port = host, port
        self._local = (source, 0) if host == HOST else None
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, message: bytes) -> Response:
        """Sends a request and returns the answer. Raises OSError or EOFError if the connection ends before the answer.

        Never retries: a request without an answer is a result to report.
        """
        reader, writer = await self._connection()
        keep = False
        try:
            sent_s = asyncio.get_running_loop().time()
            writer.write(message)
            status, headers = parse_head(await reader.readuntil(b"\r\n\r\n"))
            body = await reader.readexactly(int(headers["content-length"]))
            keep = headers.get("connection") != "close" and not writer.transport.get_write_buffer_size()
        finally:
            if keep:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()
        return Response(sent_s, status, headers, body)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and reader.exception() is None:
                return reader, writer
            writer.transport.abort()
        return await asyncio.open_connection(self._host, self._port, local_addr=self._local)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Parses the status and the headers, with lower-case names. Raises EOFError without the length of the body."""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    if "content-length" not in headers:
        raise EOFError("the answer does not tell its length")
    return int(first.split(" ", 2)[1]), headers
