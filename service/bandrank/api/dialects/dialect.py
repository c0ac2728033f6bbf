"""The interface of a wire format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from bandrank.api.parsing import Json
from bandrank.engine.calls import Answer, Call
from bandrank.engine.ranking import RankedCandidate
from bandrank.errors import InputTooLarge

Float32s = npt.NDArray[np.float32]


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
    read: turns a body of at most so many candidates into a call; raises InvalidInput and InputTooLarge.  write: turns a
    call, its answer and the seconds it took into the JSON of the response.  write_error: turns a problem into the JSON
    of an error's body.
    """

    paths: tuple[str, ...]
    request: type[BaseModel]
    response: type[BaseModel]
    error: type[BaseModel]
    read: Callable[[Json, int], Call]
    write: Callable[[Call, Answer, float], str]
    write_error: Callable[[Problem], str]


def check_count(num_candidates: int, limit: int) -> None:
    """Raises InputTooLarge if a request has more candidates than the limit."""
    if num_candidates > limit:
        raise InputTooLarge(f"too many candidates: {num_candidates} (limit {limit})")


def results_of(call: Call, answer: Answer) -> Sequence[RankedCandidate]:
    """The candidates that a call asks for, best first."""
    return answer.ranking.candidates[: call.top_n or None]


def shown_scores(call: Call, results: Sequence[RankedCandidate]) -> list[float]:
    """The scores that clients see: the scorer's own, or their sigmoid."""
    scores = np.array([candidate.score for candidate in results], np.float32)
    shown: list[float] = (scores if call.raw_scores else sigmoid(scores)).tolist()
    return shown


def sigmoid(scores: Float32s) -> Float32s:
    """1 / (1 + exp(-x)) in float32, without overflow on either side."""
    small = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1 / (1 + small), small / (1 + small))
