"""Answers only probes and scrapes, on connections beyond the limit."""

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bandrank.api.access_log import AccessLog
from bandrank.api.error_bodies import ErrorBody
from bandrank.api.request_ids import RequestIds

PROBES = frozenset(
    {"/healthz", "/readyz"}
    | {"/_bandrank/healthz", "/_bandrank/readyz"}
    | {"/health", "/ping", "/v1/health/live", "/v1/health/ready", "/.well-known/live", "/.well-known/ready"}
    | {"/infinity/health"}
)
ANSWERED = PROBES | {"/metrics", "/_bandrank/metrics"}  # scrapes take milliseconds each, and wait their turn


class OnlyProbes:
    """Answers probes and scrapes, and everything else with 503.

    on_refusal: called for each refused request, which nothing else counts.
    """

    def __init__(self, app: ASGIApp, *, on_refusal: Callable[[], None]) -> None:
        self._app = app
        self._on_refusal = on_refusal
        self._refusal = RequestIds(AccessLog(refuse))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ANSWERED:
            await self._app(scope, receive, send)
            return
        self._on_refusal()
        await self._refusal(scope, receive, send)


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers 503 and closes the connection."""
    body = ErrorBody.of("too many connections; keep fewer open, or try again", "too_many_connections")
    headers = {"Connection": "close", "Retry-After": "1"}
    answer = Response(body.model_dump_json(), 503, headers, media_type="application/json")
    await answer(scope, receive, send)
