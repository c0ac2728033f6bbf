"""The interface of a wire format."""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from bandrank.engine.calls import Answer, Call


@dataclass(frozen=True)
class Problem:
    """An error as a client sees it. error_type: a name that stays the same over versions."""

    status: int
    message: str
    error_type: str


@dataclass(frozen=True)
class Dialect:
    """A wire format of re-ranking; each has a file in this package.

    paths: those of its POST endpoints.  request, response, error: its bodies, for the description of the API.
    read: turns a body into a call; raises InvalidInput.  write: turns a call, its answer and the seconds it took into
    the JSON of the response.  write_error: turns a problem into the JSON of an error's body.
    """

    paths: tuple[str, ...]
    request: type[BaseModel]
    response: type[BaseModel]
    error: type[BaseModel]
    read: Callable[[bytes], Call]
    write: Callable[[Call, Answer, float], str]
    write_error: Callable[[Problem], str]
