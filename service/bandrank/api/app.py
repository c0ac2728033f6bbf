"""The ASGI application: routes, errors, and the metrics of every answer."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bandrank import __version__
from bandrank.api import candidates, rerank, status
from bandrank.api.dialects import DIALECTS, PATHS
from bandrank.api.failures import CLIENT_GONE, add_handlers
from bandrank.api.parsing import shared_schemas
from bandrank.api.service import Service
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)


def create_app(service: Service) -> FastAPI:
    """The application around a service, which it starts before the first request and closes after the last."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        log.info("ready", extra={"models": list(service.models.by_name)})
        watching = asyncio.create_task(service.watch())
        yield
        watching.cancel()
        await service.close()

    app = _App(
        title="bandrank",
        version=__version__,
        description="Re-ranks a search engine's candidates.",
        lifespan=lifespan,
    )
    app.state.service = service
    for dialect in DIALECTS:
        app.include_router(rerank.router_of(dialect))
    app.include_router(status.router)
    app.include_router(candidates.router)
    add_handlers(app)
    app.add_middleware(RerankMetrics, metrics=service.metrics)
    return app


class _App(FastAPI):
    """An application whose description includes the bodies that endpoints read themselves."""

    def openapi(self) -> dict[str, Any]:
        description = super().openapi()
        requests = [dialect.request for dialect in DIALECTS]
        description["components"]["schemas"].update(shared_schemas(*requests, candidates.RegisterRequest))
        return description


class RerankMetrics:
    """Counts each answer of a dialect by status and observes its duration; a client that hung up counts as 499."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in PATHS:
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
            self._metrics.requests.labels(status).inc()
            self._metrics.request_seconds.observe(time.monotonic() - start)
