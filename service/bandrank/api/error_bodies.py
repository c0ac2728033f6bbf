"""The bodies of errors: one that almost every client can read, and others for the clients that cannot."""

from abc import ABC, abstractmethod
from typing import Self

from pydantic import BaseModel


class AnyErrorBody(BaseModel, ABC):
    """What every error says, under one name at least. error_type: a name that stays the same over versions."""

    message: str
    error_type: str

    @classmethod
    @abstractmethod
    def of(cls, message: str, error_type: str) -> Self:
        """The body of an error."""


class ErrorBody(AnyErrorBody):
    """The flat body of an error, with its message under each of the names that known clients read."""

    detail: str
    error: str

    @classmethod
    def of(cls, message: str, error_type: str) -> Self:
        return cls(message=message, detail=message, error=message, error_type=error_type)


class Fault(BaseModel):
    """What is wrong with a request. loc: the way to it, from `body` on."""

    loc: list[str]
    msg: str
    type: str


class FaultsBody(AnyErrorBody):
    """For clients of services that FastAPI describes: they read a list of faults, and fail at a text."""

    detail: list[Fault]
    error: str

    @classmethod
    def of(cls, message: str, error_type: str) -> Self:
        fault = Fault(loc=["body"], msg=message, type=error_type)
        return cls(message=message, detail=[fault], error=message, error_type=error_type)


class OpenAIError(BaseModel):
    """An error as OpenAI's clients read it."""

    message: str
    type: str
    param: None = None
    code: None = None


class OpenAIErrorBody(AnyErrorBody):
    """For OpenAI's clients, of which the newest show no message but the one in this object."""

    detail: str
    error: OpenAIError

    @classmethod
    def of(cls, message: str, error_type: str) -> Self:
        error = OpenAIError(message=message, type=error_type)
        return cls(message=message, detail=message, error=error, error_type=error_type)
