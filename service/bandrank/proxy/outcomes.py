"""What became of a request, in the words of the response header X-Rerank-Status and of the metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

STATUS_HEADER = b"x-rerank-status"


class Outcome(StrEnum):
    """PASSED: nobody asked to re-rank it.  SKIPPED: it is not a search that can be re-ranked, and was passed through.
    FAILED: re-ranking failed; the hits are in the engine's order.  UNANSWERED: the engine did not answer, or not to the
    end; the client got our error or a cut connection.
    """

    PASSED = "passed"
    RERANKED = "reranked"
    SKIPPED = "skipped"
    FAILED = "failed"
    UNANSWERED = "unanswered"


class SkipReason(StrEnum):
    """Why a search that somebody asked to re-rank is passed through."""

    OFF = "off"
    BAD_HEADER = "bad_header"
    UNREADABLE_REQUEST = "unreadable_request"
    LARGE_REQUEST = "large_request"
    NO_QUERY = "no_query"
    AMBIGUOUS_QUERY = "ambiguous_query"
    NO_HITS_WANTED = "no_hits_wanted"
    BEYOND_DEPTH = "beyond_depth"
    SORTED = "sorted"
    PAGED = "paged"
    EXPLAINED = "explained"
    PARTIAL_ANSWER = "partial_answer"
    ENGINE_ERROR = "engine_error"


class FailReason(StrEnum):
    """Why the engine's order stays; a further reason is the type of an error in re-ranking itself."""

    DEADLINE = "deadline_exceeded"
    ENGINE_REFUSED = "engine_refused"
    ENGINE_FAILED = "engine_failed"
    ENGINE_TIMEOUT = "engine_timeout"
    LARGE_ANSWER = "large_answer"
    UNREADABLE_ANSWER = "unreadable_answer"
    NO_TEXT = "no_text"
    INTERNAL = "internal"


@dataclass(frozen=True)
class Mark:
    """What became of a search. reason: why it was not re-ranked; never a client's words.

    hits: how many were put in order.  without_text: how many of these had no text.  degraded: whether the budget or the
    load left fewer of them to the last stage than planned.
    """

    outcome: Outcome
    reason: str = ""
    hits: int = 0
    without_text: int = 0
    degraded: bool = False

    def __str__(self) -> str:
        words = [self.outcome.value]
        words += [f"reason={self.reason}"] if self.reason else []
        words += [f"hits={self.hits}"] if self.outcome is Outcome.RERANKED else []
        words += [f"without_text={self.without_text}"] if self.without_text else []
        return "; ".join([*words, "degraded"] if self.degraded else words)


PASSED = Mark(Outcome.PASSED)
ENGINE_ERROR = Mark(Outcome.SKIPPED, SkipReason.ENGINE_ERROR)


def status_header(marks: Sequence[Mark]) -> tuple[bytes, bytes]:
    """The response header: what became of each search, in order."""
    return STATUS_HEADER, ", ".join(map(str, marks)).encode("ascii")


class SentAsItCame(Exception):
    """The client's own request is sent as it came. marks: what became of each of its searches, or one for all."""

    def __init__(self, *marks: Mark) -> None:
        super().__init__(*map(str, marks))
        self.marks = marks


class Skipped(SentAsItCame):
    """The search cannot be re-ranked."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(Mark(Outcome.SKIPPED, reason))


class Unusable(SentAsItCame):
    """The deeper search cannot be sent, or its answer cannot be used.

    reason: a FailReason, or the type of an error of this service.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(Mark(Outcome.FAILED, reason))
