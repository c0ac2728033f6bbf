"""Paths with slashes too many, as of a client that adds `/rerank` to a base URL that ends with a slash.

Services that FastAPI describes, such as vLLM and infinity, redirect a path that ends with one, and clients follow. A
redirect would go to whatever Host a client sends, so none is needed here.
"""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

SLASHES = re.compile("/{2,}")


class PlainPaths:
    """Middleware: the path of a POST counts without slashes at its end, and as if those side by side were one.

    Other methods are left alone: a proxy may keep some of their paths, such as /metrics, from others by name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            scope = {**scope, "path": SLASHES.sub("/", scope["path"]).rstrip("/") or "/"}
        await self._app(scope, receive, send)
