"""The proxy's own errors, in the flat body of all errors of this service."""

from starlette.responses import Response

from bandrank.api.error_bodies import ErrorBody
from bandrank.api.error_responses import headers_of
from bandrank.api.hardening import HEADERS
from bandrank.errors import BandrankError
from bandrank.logs import request_id


def answer_of(error: Exception) -> Response:
    """The answer to a failed request, without a word about an error that is not ours."""
    status, message, error_type = 500, "internal error; the log has the cause", "internal"
    headers = HEADERS | {"X-Request-Id": request_id.get()}
    if isinstance(error, BandrankError):
        status, message, error_type = error.status, str(error), error.error_type
        headers |= headers_of(error)
    body = ErrorBody.of(message, error_type).model_dump_json()
    return Response(body, status, headers, media_type="application/json")
