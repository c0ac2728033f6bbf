"""The ASGI application: routes, the one error body, and metrics of every answer."""

import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bandrank import __version__
from bandrank.api import candidates, routes
from bandrank.api.parsing import shared_schemas
from bandrank.api.schemas import ErrorBody, RegisterRequest, RerankRequest
from bandrank.api.service import Service
from bandrank.errors import BandrankError, Overloaded
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)

CLIENT_GONE = 499


def create_app(service: Service) -> FastAPI:
    """The application around a service; starts it before the first request, closes it after the last."""
    app = _App(
        title="bandrank",
        version=__version__,
        description="Re-ranks a search engine's candidates.",
        lifespan=_lifespan(service),
    )
    app.state.service = service
    app.include_router(routes.router)
    app.include_router(candidates.router)
    app.add_exception_handler(BandrankError, _bandrank_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _unexpected_error)
    app.add_middleware(RerankMetrics, metrics=service.metrics)
    return app


class _App(FastAPI):
    """Describes the bodies too that endpoints read themselves."""

    def openapi(self) -> dict[str, Any]:
        description = super().openapi()
        description["components"]["schemas"].update(shared_schemas(RerankRequest, RegisterRequest))
        return description


def _lifespan(service: Service) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        log.info("ready", extra={"model": service.model_name})
        yield
        await service.close()

    return lifespan


class RerankMetrics:
    """Counts each answer to /rerank by status and observes its duration; a client that hung up counts as 499."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/rerank":
            await self._app(scope, receive, send)
            return
        status = str(CLIENT_GONE)
        begun = time.monotonic()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception:  # a bug; the answer is written outside of this middleware
            status = "500"
            raise
        finally:
            self._metrics.requests.labels(status).inc()
            self._metrics.request_seconds.observe(time.monotonic() - begun)


def _bandrank_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, BandrankError), "registered for BandrankError alone. This is a bug."
    headers = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return _error(error.status, str(error), error.error_type, headers)


def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTPException alone. This is a bug."
    return _error(error.status_code, str(error.detail), "http", dict(error.headers or {}))


def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)  # nobody reads it; the metrics count it


def _unexpected_error(_: Request, error: Exception) -> Response:
    log.error("a request failed unexpectedly", exc_info=error)
    return _error(500, "internal error; the log has the cause", "internal", {})


def _error(status: int, message: str, error_type: str, headers: dict[str, str]) -> Response:
    body = ErrorBody(message=message, detail=message, error=message, error_type=error_type)
    return Response(body.model_dump_json(), status, headers, media_type="application/json")
