"""An id for each request, which its answer and its lines in the log carry."""

import random
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bandrank.logs import request_id

HEADER = b"x-request-id"
ACCEPTED = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestIds:
    """Takes the id over that a request brings in X-Request-Id, or makes one, and adds it to the answer.

    An id that is too long or has other characters than letters, digits, `.`, `_` and `-` is replaced.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        chosen = id_of(scope)
        # Not reset: the server logs what the application raises after this has returned, and every request has a task
        # with a context of its own.
        request_id.set(chosen.decode())

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, chosen)]}
            await send(message)

        await self._app(scope, receive, add)


def id_of(scope: Scope) -> bytes:
    """The id that a request brings, if it can be used, or a new one.

    New ones are not from the system's randomness: ids are not secret, and a thread that asks for it may lose its turn.
    """
    brought = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return brought if ACCEPTED.fullmatch(brought) else f"{random.getrandbits(128):032x}".encode()
