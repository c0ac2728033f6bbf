"""The proxy's own errors, in the flat body of all errors of this service."""

from bandrank.api.error_bodies import ErrorBody
from bandrank.api.error_responses import headers_of
from bandrank.api.hardening import HEADERS
from bandrank.errors import BandrankError
from bandrank.logs import request_id
from bandrank.proxy.headers import Headers


def answer_of(error: Exception) -> tuple[int, Headers, bytes]:
    """Status, headers and body of the answer to a failed request, without a word about an error that is not ours."""
    status, message, error_type, said = 500, "internal error; the log has the cause", "internal", HEADERS
    if isinstance(error, BandrankError):
        status, message, error_type = error.status, str(error), error.error_type
        said = HEADERS | headers_of(error)
    body = ErrorBody.of(message, error_type).model_dump_json().encode("utf-8")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *((name.lower().encode("ascii"), value.encode("ascii")) for name, value in said.items()),
        (b"x-request-id", request_id.get().encode("ascii")),
    ]
    return status, headers, body
