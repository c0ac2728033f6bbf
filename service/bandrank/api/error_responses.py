"""Turns errors into responses, with the body that clients of the path read."""

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Scope

from bandrank.api.error_bodies import AnyErrorBody
from bandrank.errors import BandrankError, Overloaded, Unauthorized, whole_seconds

log = logging.getLogger(__name__)

CLIENT_GONE = 499
SHOWN_PATH = 80  # characters; a client may send thousands


def add_handlers(app: FastAPI, kind_of: Callable[[str, int], type[AnyErrorBody]]) -> None:
    """Adds a handler for every error of the application. They are async because others would run in another thread.

    kind_of: the kind of body that the clients of a path read, by the path and the status.
    """

    def respond(request: Request, status: int, message: str, error_type: str, headers: Mapping[str, str]) -> Response:
        body = kind_of(path_of(request.scope), status).of(message, error_type)
        return Response(body.model_dump_json(), status, headers, media_type="application/json")

    @app.exception_handler(BandrankError)
    async def bandrank_error(request: Request, error: BandrankError) -> Response:
        return respond(request, error.status, str(error), error.error_type, headers_of(error))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if "Allow" in headers:  # the framework names the methods of only one of the path's routes
            template = path_of(request.scope)
            routes = [route for route in app.routes if isinstance(route, Route) and route.path == template]
            headers["Allow"] = ", ".join(sorted({method for route in routes for method in route.methods or ()}))
        message, path = str(error.detail), request.scope["path"][:SHOWN_PATH]
        if error.status_code == HTTPStatus.NOT_FOUND:  # clients build paths that they do not show to users
            message = f"there is nothing at {path!r}; look at the base URL of the client"
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            message = f"{path!r} takes {headers.get('Allow')}, not {request.method}"
        return respond(request, error.status_code, message, "http", headers)

    @app.exception_handler(ClientDisconnect)
    async def client_gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_GONE)  # nobody reads it, but the metrics count it

    @app.exception_handler(Exception)
    async def unexpected_error(request: Request, error: Exception) -> Response:
        log.error("a request failed unexpectedly", exc_info=error)
        return respond(request, 500, "internal error; the log has the cause", "internal", {})


def headers_of(error: BandrankError) -> dict[str, str]:
    """The headers of an error's response: when to try again, or how to authenticate."""
    if isinstance(error, Overloaded):
        return {"Retry-After": str(whole_seconds(error.retry_after_s))}
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}


def path_of(scope: Scope) -> str:
    """The path of an answered request: the template of its route or, without a route, the path itself."""
    return str(getattr(scope.get("route"), "path", scope["path"]))
