"""What /openapi.json says beyond the endpoints' types: limits, headers, and answers that any request may get."""

from typing import Any

from fastapi import APIRouter

from bandrank.api.connections import ConnectionLimits
from bandrank.api.error_bodies import AnyErrorBody, ErrorBody
from bandrank.api.service import Service

Responses = dict[int | str, dict[str, Any]]

RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds to wait before trying again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}

PLAIN_TEXT = {"text/plain": {"schema": {"type": "string"}}}


def errors(*statuses: int, body: type[AnyErrorBody] = ErrorBody) -> Responses:
    """The responses of an endpoint with these statuses."""
    responses: Responses = {status: {"model": body} for status in statuses}
    if 429 in responses:
        responses[429]["headers"] = RETRY_AFTER
    if 400 in responses:  # any connection may get this too, without JSON
        responses[400]["content"] = PLAIN_TEXT
    return responses


def anywhere(limits: ConnectionLimits) -> Responses:
    """The responses that every endpoint may give: its connection's, which have no JSON, and failures of the service."""
    patience = f"within {limits.patience_s:g} s"
    headers = f"more than {limits.max_headers} of them, or more than {limits.max_header_bytes} bytes"
    of_connections: Responses = {
        400: {
            "description": "The request is not valid HTTP. The connection is closed.",
            "content": PLAIN_TEXT,
        },
        408: {
            "description": f"The headers did not arrive {patience}, or fewer than {limits.least_bytes} bytes of the "
            "body did in that time. The connection is closed."
        },
        431: {"description": f"The headers are too large: {headers}. The connection is closed."},
    }
    return of_connections | errors(500, 503)


def new_router() -> APIRouter:
    """A router that adds to each endpoint the responses that every endpoint may give."""
    return APIRouter(responses=anywhere(ConnectionLimits()))


def overview(service: Service) -> str:
    """The description of the whole API, with the limits of this service."""
    return f"""Re-ranks a search engine's candidates.

A body is uncompressed JSON in UTF-8, of at most {service.max_body_bytes} bytes; a larger one gets 413. Strings may hold
any valid Unicode text, including NUL; a lone surrogate gets 422. Numbers are JSON's own, and 2.0 counts as an integer.
Fields that are not described are ignored.

A request ranks at most {service.max_candidates} candidates. It gets 413 if it has more, if it asks for more than
{service.max_answer_bytes} bytes of texts or embeddings, or if it is more work than can be done in time. Candidates may
also be registered as a stream of any number of lines, each of at most {service.max_line_bytes} bytes; a longer line
ends the request with 413.

A path that is not described gets 404, and a method that is not described gets 405; HEAD works wherever GET does. In the
path of a POST, slashes at the end are ignored, and several slashes in a row count as one."""
