"""Turns errors into responses: one flat body, whatever the dialect of the request."""

import logging
import math
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from bandrank.errors import BandrankError, Overloaded, Unauthorized

log = logging.getLogger(__name__)

CLIENT_GONE = 499


class ErrorBody(BaseModel):
    """The flat body of every error, under each of the names that known clients read.

    error_type: a name that stays the same over versions.
    """

    message: str
    detail: str
    error: str
    error_type: str


def add_handlers(app: FastAPI) -> None:
    """Adds a handler for every error of the application; async, because others would run in another thread."""

    @app.exception_handler(BandrankError)
    async def bandrank_error(_: Request, error: BandrankError) -> Response:
        headers = {}
        if isinstance(error, Overloaded):
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        if isinstance(error, Unauthorized):
            headers["WWW-Authenticate"] = "Bearer"
        return _respond(error.status, str(error), error.error_type, headers)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if "Allow" in headers:  # where the framework names the methods of one of the path's routes
            headers["Allow"] = ", ".join(sorted(app.state.methods.get(path_of(request.scope), {headers["Allow"]})))
        return _respond(error.status_code, str(error.detail), "http", headers)

    @app.exception_handler(ClientDisconnect)
    async def client_gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_GONE)  # nobody reads it, but the metrics count it

    @app.exception_handler(Exception)
    async def unexpected_error(_: Request, error: Exception) -> Response:
        log.error("a request failed unexpectedly", exc_info=error)
        return _respond(500, "internal error; the log has the cause", "internal", {})


def path_of(scope: Scope) -> str:
    """The path of a request that has been answered: that of its route, with names in place of what varies, if any."""
    return str(getattr(scope.get("route"), "path", scope["path"]))


def error_body(message: str, error_type: str) -> str:
    """The JSON of the ErrorBody."""
    return ErrorBody(message=message, detail=message, error=message, error_type=error_type).model_dump_json()


def _respond(status: int, message: str, error_type: str, headers: Mapping[str, str]) -> Response:
    return Response(error_body(message, error_type), status, headers, media_type="application/json")
