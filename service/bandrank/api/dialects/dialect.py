"""What a wire format has to say for itself."""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from bandrank.engine.calls import Answer, Call


@dataclass(frozen=True)
class Problem:
    """An error as a client hears of it. error_type: a name that stays the same over versions."""

    status: int
    message: str
    error_type: str


@dataclass(frozen=True)
class Dialect:
    """A wire format of re-ranking, one file each.

    paths: where it is spoken, by POST.  request, response, error: its bodies, for the description of the API.
    read: from a body to a call; raises InvalidInput.  write: from a call, its answer and the seconds it took to the
    JSON of the response.  write_error: the JSON of an error's body.
    """

    paths: tuple[str, ...]
    request: type[BaseModel]
    response: type[BaseModel]
    error: type[BaseModel]
    read: Callable[[bytes], Call]
    write: Callable[[Call, Answer, float], str]
    write_error: Callable[[Problem], str]
