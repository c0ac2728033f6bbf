"""The errors that a client or an operator sees.

BandrankError
    InvalidInput        422  the request cannot be understood
    InputTooLarge       413  the request is larger than this service takes
    TooSlow             408  the request stopped arriving
    UnsupportedMedia    415  the body is compressed, or of a type that is not read here
    Unauthorized        401  the request has no key, or an unknown one
    Forbidden           403  the client may not do this
    UnknownModel        404  the requested model is not served
    NoEmbeddings        400  the requested model has no scorer that embeds so
    UnknownStrategy     404  the model does not have the requested strategy
    UnknownCandidates   404  none of the ids given in place of texts is registered
    Overloaded          429  more work is queued than can be done in time, or the key's rate is used up; try again later
        ShareUsed       429  the client itself holds its whole share of something that others need, too
    DeadlineExceeded    504  the work was not done in time
    ScoringFailed       500  the model failed; not the client's fault
    BadGateway          502  the search engine behind the proxy ends the connection or does not answer in HTTP
        Unreachable     502  it cannot be reached at all
    NotReady            503  the service is starting, stopping or broken, or what it depends on does not answer
    GatewayTimeout      504  the search engine behind the proxy does not answer in time
    StoreFull           507  no room for more registered candidates

BadSetting is for the operator alone.
"""

import math
from typing import ClassVar, Self


def whole_seconds(seconds: float) -> int:
    """How long a client is told to wait before it tries again."""
    return max(1, math.ceil(seconds))


class BandrankError(Exception):
    """An error with an HTTP status and a name that is stable across versions."""

    status: ClassVar[int] = 500
    error_type: ClassVar[str] = "internal"

    def saying(self, message: str) -> Self:
        """A copy with another message; the original may be raised for other requests, too, and stays as it is."""
        other = type(self).__new__(type(self), message)
        vars(other).update(vars(self))
        return other


class InvalidInput(BandrankError):
    status = 422
    error_type = "invalid_input"


class InputTooLarge(BandrankError):
    status = 413
    error_type = "input_too_large"


class TooSlow(BandrankError):
    status = 408
    error_type = "too_slow"


class UnsupportedMedia(BandrankError):
    status = 415
    error_type = "unsupported_media"


class Unauthorized(BandrankError):
    status = 401
    error_type = "unauthorized"


class Forbidden(BandrankError):
    status = 403
    error_type = "forbidden"


class UnknownModel(BandrankError):
    status = 404
    error_type = "unknown_model"


class UnknownStrategy(BandrankError):
    status = 404
    error_type = "unknown_strategy"


class NoEmbeddings(BandrankError):
    status = 400
    error_type = "no_embeddings"


class UnknownCandidates(BandrankError):
    status = 404
    error_type = "unknown_candidates"


class Overloaded(BandrankError):
    """retry_after_s: seconds until the queued work will be done, at the measured speed, or the key may be used."""

    status = 429
    error_type = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShareUsed(Overloaded):
    pass


class DeadlineExceeded(BandrankError):
    status = 504
    error_type = "deadline_exceeded"


class ScoringFailed(BandrankError):
    status = 500
    error_type = "scoring_failed"


class NotReady(BandrankError):
    status = 503
    error_type = "not_ready"


class BadGateway(BandrankError):
    status = 502
    error_type = "bad_gateway"


class Unreachable(BadGateway):
    pass


class GatewayTimeout(BandrankError):
    status = 504
    error_type = "gateway_timeout"


class StoreFull(BandrankError):
    status = 507
    error_type = "store_full"


class BadSetting(ValueError):
    """A setting that cannot be used.

    name: the setting's field, or the variable, file or table that is wrong.  reason: what is expected of it.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.reason = reason
