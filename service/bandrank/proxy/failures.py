"""The proxy's own errors, in the flat body of all errors of this service."""

import math

from bandrank.api.error_bodies import ErrorBody
from bandrank.api.hardening import HEADERS
from bandrank.errors import BandrankError, Overloaded
from bandrank.logs import request_id
from bandrank.proxy.headers import Headers


def answer_of(error: Exception) -> tuple[int, Headers, bytes]:
    """Status, headers and body of the answer to a request that failed; of an error that is not ours it says nothing."""
    status, message, error_type = 500, "internal error; the log has the cause", "internal"
    if isinstance(error, BandrankError):
        status, message, error_type = error.status, str(error), error.error_type
    body = ErrorBody.of(message, error_type).model_dump_json().encode("utf-8")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *((name.lower().encode("ascii"), value.encode("ascii")) for name, value in HEADERS.items()),
        (b"x-request-id", request_id.get().encode("ascii")),
    ]
    if isinstance(error, Overloaded):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    return status, headers, body
