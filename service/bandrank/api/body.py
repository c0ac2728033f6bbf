"""Reads a request's body within a bound."""

from starlette.requests import Request

from bandrank.errors import InputTooLarge

# A body that is too large is read on, and thrown away, up to this many times the limit, so that the client gets the
# answer instead of a broken pipe.
DRAIN_FACTOR = 8


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises InputTooLarge if it has more than `max_bytes`; no more than that is held in memory."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= max_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
            if size > DRAIN_FACTOR * max_bytes:
                break
    if size > max_bytes:
        raise InputTooLarge(f"the body is larger than {max_bytes} bytes; send fewer or shorter candidates per request")
    return b"".join(chunks)
