"""One line in the log for each answered request, if wanted."""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bandrank.api.error_responses import CLIENT_GONE
from bandrank.logs import ACCESS

log = logging.getLogger(ACCESS)

MAX_PATH = 512  # characters; a client may send thousands


class AccessLog:
    """Logs method, path, status, milliseconds, client and the size of the body of each answer.

    A client that hung up counts as 499. Neither the query string nor any header is logged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not log.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        status, size = CLIENT_GONE, 0
        start = time.monotonic()

        async def watch(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            facts = {
                "method": scope["method"],
                "path": scope["path"][:MAX_PATH],
                "status": status,
                "ms": round((time.monotonic() - start) * 1000, 1),
                "client": scope["client"][0] if scope.get("client") else "",
                "bytes": size,
            }
            log.info("answered", extra=facts)
