"""The passages that gave long candidates their scores (MaxP), as token ids and as characters."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BestPassage:
    """The best passage of a candidate.

    stage: the stage that scored it.  score: its raw score.  tokens: the indices of its first token id among those of
    the candidate and of the one behind its last; None where it is all of the text.
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
