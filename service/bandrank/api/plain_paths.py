"""Accepts paths with too many slashes, as from a client that adds `/rerank` to a base URL that ends with a slash.

FastAPI services such as vLLM and infinity redirect a path that ends with a slash, and clients follow. A redirect would
go to whatever Host a client sends, so there is none here.
"""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

SLASHES = re.compile("/{2,}")


class PlainPaths:
    """Middleware that drops slashes at the end of a POST's path, and merges those side by side.

    Other methods are left alone: a proxy may keep clients from some of their paths, such as /metrics, by name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            scope = {**scope, "path": SLASHES.sub("/", scope["path"]).rstrip("/") or "/"}
        await self._app(scope, receive, send)
