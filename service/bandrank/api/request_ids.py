"""An id for each request, in its answer and its log lines, and the id of its trace, in its log lines."""

import random
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bandrank.logs import request_id, trace_id

HEADER = b"x-request-id"
ACCEPTED = re.compile(rb"[A-Za-z0-9._-]{1,128}")

TRACE_HEADER = b"traceparent"
# Of any version but 255; later ones may append fields (W3C Trace Context, section 3.2).
TRACE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


class RequestIds:
    """Adopts the id that a request brings in X-Request-Id, or makes one, and adds it to the answer.

    An id that is too long or has characters other than letters, digits, `.`, `_` and `-` is replaced. The trace that
    `traceparent` names goes into the log; a malformed header is ignored.

    answered: whether answers get the id; else they stay as they are.
    """

    def __init__(self, app: ASGIApp, *, answered: bool = True) -> None:
        self._app = app
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Not reset: the server logs what the application raises after it has returned, and each request has its task.
        chosen = id_of(scope)
        request_id.set(chosen.decode())
        trace_id.set(trace_of(scope))

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, chosen)]}
            await send(message)

        await self._app(scope, receive, add if self._answered else send)


def id_of(scope: Scope) -> bytes:
    """The id that a request brings, if it can be used, or a new one.

    New ids do not come from the system's randomness: they are not secret, and a thread that reads it may lose its turn.
    """
    brought = _header(scope, HEADER)
    return brought if ACCEPTED.fullmatch(brought) else f"{random.getrandbits(128):032x}".encode()


def trace_of(scope: Scope) -> str:
    """The id of the trace that the request belongs to; empty if it names none."""
    named = TRACE.fullmatch(_header(scope, TRACE_HEADER))
    return named[1].decode() if named else ""


def _header(scope: Scope, name: bytes) -> bytes:
    """The first header of that name; empty if there is none."""
    return next((value for each, value in scope["headers"] if each == name), b"")
