"""The interface of a wire format, and what the formats share when they answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from bandrank.api.error_bodies import AnyErrorBody, ErrorBody
from bandrank.engine.calls import Answer, Call
from bandrank.engine.passages import Passage
from bandrank.engine.ranking import RankedCandidate
from bandrank.errors import InputTooLarge, InvalidInput

Float32s = npt.NDArray[np.float32]
Request = TypeVar("Request", bound=BaseModel)

NOT_CANDIDATES = {"rank_fields"}  # fields of a request that may hold a list
NOT_INSTRUCTED = "instruction was not applied; no model that ranked takes one"
NOT_POOLED = "pooled changed nothing; no scorer that ranked has lexical evidence"


@dataclass(frozen=True)
class Exchange(Generic[Request]):
    """A request with its answer. total_s: seconds since the request's body began to arrive."""

    request: Request
    call: Call
    answer: Answer
    total_s: float

    @property
    def results(self) -> Sequence[RankedCandidate]:
        """The candidates that the call asks for, best first."""
        return self.answer.ranking.candidates[: self.call.top_n or None]

    @property
    def scores(self) -> list[float]:
        """The score of each result, as clients see it."""
        return shown_scores(self.call, self.results)

    @property
    def scores_as_sent(self) -> list[float]:
        """The scores in the order of the request. Its call must ask for all candidates and have none unresolved."""
        scores = [0.0] * len(self.call.candidates)
        for candidate, score in zip(self.results, self.scores, strict=True):
            scores[candidate.index] = score
        return scores

    @property
    def ranked(self) -> Iterator[tuple[int, float, str | None]]:
        """For each result: the candidate's index in the request, its score, and its text if the call asks for texts."""
        for candidate, score in zip(self.results, self.scores, strict=True):
            yield candidate.index, score, self.text(candidate.index)

    @property
    def warnings(self) -> list[str]:
        """Warnings about what the call asks for and its results lack: passages, an instruction that was read, or a
        pooled form.
        """
        instructed = any(report.instructed for report in self.answer.ranking.reports)
        lacking = [NOT_INSTRUCTED] if self.call.options.instruction and not instructed else []
        if self.call.pooled and not self.answer.ranking.pooled:
            lacking.append(NOT_POOLED)
        if not self.call.options.best_passages:
            return lacking
        without = {each.stage for each in self.results if each.index not in self.answer.passages}
        return lacking + [
            f"results of the stage {stage!r} have no passage, because it reads a candidate as a whole"
            for stage in sorted(without)
        ]

    def text(self, index: int) -> str | None:
        """The text of a ranked candidate, if the call asks for texts."""
        return self.answer.texts[index] if self.call.return_texts else None


@dataclass(frozen=True)
class Dialect(Generic[Request]):
    """A wire format of re-ranking; each has a file in this package.

    request, response: its bodies, for validation and for the description of the API.  read: turns a request into a
    call; raises InvalidInput.  write: turns an exchange into the JSON of the response.  texts: those of the documents,
    if it takes long to get them, one by one; `read` leaves them out of the call; raises InvalidInput.  fields: on a
    path with several dialects, a body in which one of these is not null is in this one.  document: what a result gives
    back of the candidate at an index, if the call asks for texts.  headers: those of the response.  error: the body of
    an error, on the paths whose last dialect this is.  invalid: of a 422, if it is another.
    """

    request: type[Request]
    response: Any  # a type, or an alias such as list[Result]
    read: Callable[[Request], Call]
    write: Callable[[Exchange[Request]], bytes]
    texts: Callable[[Request], Iterator[str]] | None = None
    fields: tuple[str, ...] = ()
    document: Callable[[Exchange[Request], int], object] = Exchange.text
    headers: Callable[[Exchange[Request]], Mapping[str, str]] = lambda _: {}
    error: type[AnyErrorBody] = ErrorBody
    invalid: type[AnyErrorBody] | None = None

    def claims(self, body: object) -> bool:
        """Whether one of the fields in a body is not null."""
        return isinstance(body, dict) and any(body.get(name) is not None for name in self.fields)

    def error_of(self, status: int) -> type[AnyErrorBody]:
        """The body of an error with a status."""
        return self.invalid if self.invalid and status == InvalidInput.status else self.error


def check_lengths(content: object, request: type[BaseModel], limit: int, what: str = "candidates") -> None:
    """Raises InputTooLarge if a body has more candidates than the limit, before looking at any of them.

    They may be in an object inside the body, if the request has a model for it.  what: the name of what is counted.
    """
    if isinstance(content, dict):
        for name in request.model_fields.keys() - NOT_CANDIDATES:
            inner = request.model_fields[name].annotation
            if isinstance(value := content.get(name), list):
                if len(value) > limit:
                    raise InputTooLarge(
                        f"too many {what}: {len(value)} (limit {limit}); "
                        "send fewer, or raise the setting max_candidates"
                    )
            elif isinstance(inner, type) and issubclass(inner, BaseModel):
                check_lengths(value, inner, limit, what)


def shown_scores(call: Call, results: Sequence[RankedCandidate | Passage]) -> list[float]:
    """The scores that clients see: the scorer's own, or their sigmoid."""
    scores = np.array([candidate.score for candidate in results], np.float32)
    shown: list[float] = (scores if call.raw_scores else sigmoid(scores)).tolist()
    return shown


def sigmoid(scores: Float32s) -> Float32s:
    """1 / (1 + exp(-x)) without overflow on either side; of two scores, the greater never has the smaller sigmoid."""
    small = np.exp(-np.abs(scores.astype(np.float64)))  # float32's rounding would turn neighbours round
    return np.where(scores >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)
