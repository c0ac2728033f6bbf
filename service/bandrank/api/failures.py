"""Turns errors into responses, in the dialect of the request's path."""

import logging
import math
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from bandrank.api.dialects import dialect_at
from bandrank.api.dialects.dialect import Problem
from bandrank.errors import BandrankError, Overloaded, Unauthorized

log = logging.getLogger(__name__)

CLIENT_GONE = 499


def add_handlers(app: FastAPI) -> None:
    """Adds a handler for every error of the application; async, because others would run in another thread."""

    @app.exception_handler(BandrankError)
    async def bandrank_error(request: Request, error: BandrankError) -> Response:
        headers = {}
        if isinstance(error, Overloaded):
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        if isinstance(error, Unauthorized):
            headers["WWW-Authenticate"] = "Bearer"
        return _respond(request, Problem(error.status, str(error), error.error_type), headers)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if "Allow" in headers:  # where the framework names the methods of one of the path's routes
            headers["Allow"] = ", ".join(sorted(app.state.methods.get(request.url.path, {headers["Allow"]})))
        return _respond(request, Problem(error.status_code, str(error.detail), "http"), headers)

    @app.exception_handler(ClientDisconnect)
    async def client_gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_GONE)  # nobody reads it, but the metrics count it

    @app.exception_handler(Exception)
    async def unexpected_error(request: Request, error: Exception) -> Response:
        log.error("a request failed unexpectedly", exc_info=error)
        return _respond(request, Problem(500, "internal error; the log has the cause", "internal"), {})


def _respond(request: Request, problem: Problem, headers: Mapping[str, str]) -> Response:
    body = dialect_at(request.url.path).write_error(problem)
    return Response(body, problem.status, headers, media_type="application/json")
