"""What /openapi.json says beyond the endpoints' types: limits, headers, and answers that any request may get."""

from typing import Any

from fastapi import APIRouter

from bandrank.api.connections import ConnectionLimits
from bandrank.api.error_bodies import AnyErrorBody, ErrorBody
from bandrank.api.service import Service

Responses = dict[int | str, dict[str, Any]]

RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds until the queued work will be done.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}

NOT_HTTP = {"text/plain": {"schema": {"type": "string"}}}


def errors(*statuses: int, body: type[AnyErrorBody] = ErrorBody) -> Responses:
    """The responses of an endpoint with these statuses."""
    responses: Responses = {status: {"model": body} for status in statuses}
    if 429 in responses:
        responses[429]["headers"] = RETRY_AFTER
    if 400 in responses:  # any connection may get this too, without JSON
        responses[400]["content"] = NOT_HTTP
    return responses


def anywhere(limits: ConnectionLimits) -> Responses:
    """The responses of every endpoint: its connection's, which have no JSON, and failures of the service."""
    patience = f"within {limits.patience_s:g} s"
    headers = f"more than {limits.max_header_bytes} bytes or {limits.max_headers} of them"
    of_connections: Responses = {
        400: {
            "description": "What came is not HTTP. The connection is closed.",
            "content": NOT_HTTP,
        },
        408: {
            "description": f"The headers did not arrive {patience}, or less than {limits.least_bytes} bytes of the "
            "body did. The connection is closed."
        },
        431: {"description": f"The headers are too large: {headers}. The connection is closed."},
    }
    return of_connections | errors(500, 503)


def new_router() -> APIRouter:
    """A router whose endpoints may answer as every endpoint may."""
    return APIRouter(responses=anywhere(ConnectionLimits()))


def overview(service: Service) -> str:
    """The description of the whole API, with the limits of this service."""
    return f"""Re-ranks a search engine's candidates.

Bodies are uncompressed JSON in UTF-8, of at most {service.max_body_bytes} bytes; more gets 413. A string is any text
that is valid Unicode, NUL included; a lone surrogate gets 422. Numbers are JSON's own, and 2.0 is an integer. Fields
that are not described are ignored.

A request ranks at most {service.max_candidates} candidates. It gets 413 if it has more of them or asks for more than
{service.max_answer_bytes} bytes of texts, or if it is more work than can be done in time. A line of candidates to
register has at most {service.max_line_bytes} bytes; a longer one ends its request with 413.

A path that is not described gets 404 and a method that is not described gets 405; HEAD is answered where GET is. In the
path of a POST, slashes at the end do not count, and of those side by side one does."""
