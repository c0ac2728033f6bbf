"""The passages that gave long candidates their scores (MaxP), as token ids and as characters."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BestPassage:
    """The best passage of a candidate.

    stage: the stage that scored it.  score: its raw score.  tokens: its start and end (exclusive) among the candidate's
    token ids; None if it is the whole text.
    """

    stage: str
    score: float
    tokens: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Passage:
    """The characters of a text from `start` up to `end`, in code points, and their raw score."""

    start: int
    end: int
    score: float
