"""Answers to clients of HTTP/1.0, which know no chunks (RFC 9112, 6.1); uvicorn sends them some."""

from uvicorn._types import ASGISendCallable, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def send_unchunked(cycle: RequestResponseCycle) -> ASGISendCallable:
    """The cycle's `send`, but an answer without a length ends with the connection (RFC 9112, 6.3)."""
    send, unknown = cycle.send, False

    async def unchunked(message: ASGISendEvent) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if unknown:
                cycle.chunked_encoding = cycle.keep_alive = False
        elif unknown and message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))  # uvicorn counts down to 0
        await send(message)

    return unchunked
