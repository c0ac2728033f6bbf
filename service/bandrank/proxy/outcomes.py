"""What became of a request: the words of the response header X-Rerank-Status, and of the metrics."""

from dataclasses import dataclass
from enum import StrEnum

STATUS_HEADER = b"x-rerank-status"


class Outcome(StrEnum):
    """PASSED: nobody asked to re-rank it.  SKIPPED: it is not a search that can be re-ranked, and was passed through.
    FAILED: re-ranking failed; the hits are in the engine's order.  UNANSWERED: the engine did not answer, or not to the
    end; the client got an error of ours, or a connection that was cut.
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
    """Why the engine's order stays, beside the types of the errors of re-ranking itself."""

    DEADLINE = "deadline_exceeded"
    ENGINE_REFUSED = "engine_refused"
    ENGINE_FAILED = "engine_failed"
    ENGINE_TIMEOUT = "engine_timeout"
    LARGE_ANSWER = "large_answer"
    UNREADABLE_ANSWER = "unreadable_answer"
    NO_TEXT = "no_text"
    INTERNAL = "internal"


class Skipped(Exception):
    """The search is passed through as it came."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Unusable(Exception):
    """The deeper search cannot be sent, or its answer not be used: the client's own request is sent as it came.

    reason: a FailReason, or the type of an error of this service.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Mark:
    """What the response header says of a search. reason: of one that was not re-ranked; never a client's words.

    hits: how many were put in order, and how many of them had no text.  degraded: whether the budget or the load left
    fewer of them to the last stage than were to come there.
    """

    outcome: Outcome
    reason: str = ""
    hits: int = 0
    without_text: int = 0
    degraded: bool = False

    def header(self) -> tuple[bytes, bytes]:
        """The response header: an outcome and its parameters."""
        facts = {"reason": self.reason} if self.reason else {"hits": self.hits, "without_text": self.without_text}
        shown = [f"{name}={value}" for name, value in facts.items() if value or name == "hits"]
        shown += ["degraded"] if self.degraded else []
        return STATUS_HEADER, "; ".join([self.outcome, *shown]).encode("ascii")
