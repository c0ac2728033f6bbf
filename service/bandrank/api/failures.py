"""Turns errors into responses, in the dialect of the request's path."""

import logging
import math
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from bandrank.api.dialects import dialect_at
from bandrank.api.dialects.dialect import Problem
from bandrank.errors import BandrankError, Overloaded

log = logging.getLogger(__name__)

CLIENT_GONE = 499


def add_handlers(app: FastAPI) -> None:
    """Adds a handler for every error of the application."""
    app.add_exception_handler(BandrankError, _bandrank_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _unexpected_error)


def _bandrank_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BandrankError), "registered for BandrankError alone. This is a bug."
    headers = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return _respond(request, Problem(error.status, str(error), error.error_type), headers)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTPException alone. This is a bug."
    return _respond(request, Problem(error.status_code, str(error.detail), "http"), error.headers or {})


def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)  # nobody reads it, but the metrics count it


def _unexpected_error(request: Request, error: Exception) -> Response:
    log.error("a request failed unexpectedly", exc_info=error)
    return _respond(request, Problem(500, "internal error; the log has the cause", "internal"), {})


def _respond(request: Request, problem: Problem, headers: Mapping[str, str]) -> Response:
    body = dialect_at(request.url.path).write_error(problem)
    return Response(body, problem.status, headers, media_type="application/json")
