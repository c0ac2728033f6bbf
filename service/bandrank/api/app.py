"""The ASGI application: routes, errors, and the metrics of every answer."""

import asyncio
import logging
import time
from asyncio import Future
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bandrank import __version__
from bandrank.api import candidates, embeddings, explain, foreign_status, rerank, status, tei_embeddings
from bandrank.api.access_log import AccessLog
from bandrank.api.admission import SECURITY_SCHEMES
from bandrank.api.description import overview
from bandrank.api.dialects import DIALECTS
from bandrank.api.error_bodies import AnyErrorBody, ErrorBody
from bandrank.api.error_responses import CLIENT_GONE, add_handlers, path_of
from bandrank.api.only_probes import PROBES
from bandrank.api.pace import Paced
from bandrank.api.page.router import page_router
from bandrank.api.plain_paths import PlainPaths
from bandrank.api.request_ids import RequestIds
from bandrank.api.responses import JsonInParts
from bandrank.api.schemas import shared_schemas
from bandrank.api.service import Service
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)

OPENAPI_PATH, OTHER_PATH = "/openapi.json", "other"
REFUSED = ("4", "503")  # how their statuses begin; 503: the service is stopping, or Redis does not answer


def create_app(service: Service) -> FastAPI:
    """The application around a service. It starts the service before the first request and closes it after the last."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        log.info("ready", extra={"models": list(service.models.by_name)})
        watching = asyncio.create_task(service.watch())
        yield
        watching.cancel()
        await service.close()

    modules = (embeddings, tei_embeddings, explain, status, foreign_status, candidates)
    own = (*(module.router for module in modules), page_router())
    # `include_router` would build the description of each endpoint once more, at the first request.
    routes = [route for router in (*rerank.routers(), *own) for route in router.routes]
    app = _App(
        title="bandrank",
        version=__version__,
        description=overview(service),
        servers=[{"url": "."}],  # where this document is: a proxy may add a prefix to all paths
        routes=routes,
        lifespan=lifespan,
        openapi_url=OPENAPI_PATH,
        docs_url=None,  # the pages load scripts from another site
        redoc_url=None,
        redirect_slashes=False,  # a redirect goes to whatever Host a client sends
    )
    app.state.service = service
    paths = dict.fromkeys(route.path for route in app.routes if isinstance(route, Route))
    add_handlers(app, _error_body)
    app.add_middleware(Paced, pace=service.pace, probes=PROBES)
    app.add_middleware(RequestMetrics, metrics=service.metrics, paths=paths)
    return app


def _error_body(path: str, status: int) -> type[AnyErrorBody]:
    """The body of an error that clients of a path can read."""
    if path in {embeddings.PATH, *embeddings.OTHER_PATHS}:
        return embeddings.error_of(path, status)
    return DIALECTS[path][-1].error_of(status) if path in DIALECTS else ErrorBody


class _App(FastAPI):
    """An application whose description includes the bodies that endpoints read themselves.

    Ids and the access log wrap everything, including the answer to an unexpected error.
    """

    def build_middleware_stack(self) -> ASGIApp:
        return RequestIds(AccessLog(PlainPaths(super().build_middleware_stack())))

    def setup(self) -> None:
        written: Future[bytes] | None = None

        async def describe(_: Request) -> Response:
            """Returns the description. It takes a third of a second to make, so that is done once, in a thread."""
            nonlocal written
            if written is None:
                written = asyncio.ensure_future(asyncio.to_thread(lambda: to_json(self.openapi())))
            return JsonInParts(await asyncio.shield(written))

        self.add_route(OPENAPI_PATH, describe, include_in_schema=False)

    def openapi(self) -> dict[str, Any]:
        description = super().openapi()
        requests = {dialect.request for dialects in DIALECTS.values() for dialect in dialects}
        description["components"]["securitySchemes"] = SECURITY_SCHEMES
        description["components"]["schemas"].update(
            shared_schemas(*requests, embeddings.EmbeddingsRequest, explain.ExplainRequest, candidates.RegisterRequest)
        )
        return description


class RequestMetrics:
    """Counts each answer by path and status; a client that hung up counts as 499.

    It also observes how long a request took, but only if it was worked on: a refusal takes milliseconds, and an
    overloaded service would seem faster the more it refuses.

    paths: the existing ones, as templates; any other counts as "other". Those of dialects are also counted together.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(paths)
        for path in (*paths, OTHER_PATH):
            metrics.http_requests.labels(path, "200")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = str(CLIENT_GONE)
        start = time.monotonic()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception:  # a bug; an outer middleware writes the answer
            status = "500"
            raise
        finally:
            seconds = time.monotonic() - start
            path = path_of(scope)
            path = path if path in self._paths else OTHER_PATH
            worked_on = status == str(CLIENT_GONE) or not status.startswith(REFUSED)
            self._metrics.http_requests.labels(path, status).inc()
            if worked_on:
                self._metrics.http_request_seconds.labels(path).observe(seconds)
            if path in DIALECTS:
                self._metrics.requests.labels(status).inc()
                if worked_on:
                    self._metrics.request_seconds.observe(seconds)
