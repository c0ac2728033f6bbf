"""Serves the page: files of this package as they are, and nothing from elsewhere.

The page is public, as /openapi.json is. It calls the endpoints like any client, with the key that is typed into it if
the service has keys.
"""

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Response

from bandrank.api.description import new_router

FILES = Path(__file__).parent / "files"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def page_router() -> APIRouter:
    """A router with the page at / and what it loads below /page; the files are read once."""
    router = new_router()
    for file in sorted(FILES.iterdir()):
        path = "/" if file.name == "index.html" else f"/page/{file.name}"
        endpoint = _answer(file.read_bytes(), MEDIA_TYPES[file.suffix])
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _answer(content: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def file() -> Response:
        return Response(content, media_type=media_type)

    return file
