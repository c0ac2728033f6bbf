"""The bodies of errors: one that almost every client can read, and others for the clients that cannot."""

from abc import ABC, abstractmethod
from typing import Self

from pydantic import BaseModel

from bandrank.logs import request_id

# DashScope's names of errors, by error_type.
DASHSCOPE_CODES = {
    "forbidden": "AccessDenied",
    "input_too_large": "InvalidParameter",
    "internal": "InternalError",
    "invalid_input": "InvalidParameter",
    "overloaded": "Throttling.RateQuota",
    "unauthorized": "InvalidApiKey",
    "unknown_model": "ModelNotFound",
}


class AnyErrorBody(BaseModel, ABC):
    """What every error body has. message: a text for people. error_type: a name that stays the same across versions."""

    message: str
    error_type: str

    @classmethod
    @abstractmethod
    def of(cls, message: str, error_type: str) -> Self:
        """The body of an error."""


class ErrorBody(AnyErrorBody):
    """The body of an error.

    message: what is wrong; `detail` and `error` repeat it for clients that read those names.
    error_type: the kind of error, a name that stays the same across versions.
    """

    detail: str
    error: str

    @classmethod
    def of(cls, message: str, error_type: str) -> Self:
        return cls(message=message, detail=message, error=message, error_type=error_type)


class DashScopeErrorBody(ErrorBody):
    """The body of an error for DashScope's clients, some of which try again after certain codes.

    code: DashScope's name of the error, or the error_type if it has none. request_id: that of the header X-Request-Id.
    """

    code: str
    request_id: str

    @classmethod
    def of(cls, message: str, error_type: str) -> Self:
        code = DASHSCOPE_CODES.get(error_type, error_type)
        flat = ErrorBody.of(message, error_type)
        return cls(**dict(flat), code=code, request_id=request_id.get())


class Fault(BaseModel):
    """A fault in a request. loc: the path to it, from `body` on. msg: what is wrong. type: the error_type."""

    loc: list[str]
    msg: str
    type: str


class FaultsBody(AnyErrorBody):
    """The body of an error for infinity's clients, which read `detail` as a list of faults, and fail at a text."""

    detail: list[Fault]
    error: str

    @classmethod
    def of(cls, message: str, error_type: str) -> Self:
        fault = Fault(loc=["body"], msg=message, type=error_type)
        return cls(message=message, detail=[fault], error=message, error_type=error_type)


class OpenAIError(BaseModel):
    """An error as OpenAI's clients read it. type: the error_type."""

    message: str
    type: str
    param: None = None
    code: None = None


class OpenAIErrorBody(AnyErrorBody):
    """The body of an error for clients of OpenAI and Together, some of which show only the message inside `error`."""

    detail: str
    error: OpenAIError

    @classmethod
    def of(cls, message: str, error_type: str) -> Self:
        error = OpenAIError(message=message, type=error_type)
        return cls(message=message, detail=message, error=error, error_type=error_type)
