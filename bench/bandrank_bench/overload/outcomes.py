"""Checks answers: what became of each request."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from bandrank_bench.overload.connections import Response
from bandrank_bench.overload.requests import Request

Kind = Literal["answered", "late", "refused", "failed", "wrong", "lost"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and its answer if one came. In seconds from the start of the run: due_s: when the request should be
    sent.  sent_s: when it was, if known.  done_s: when the answer was complete or given up.
    """

    request: Request
    due_s: float
    sent_s: float | None
    done_s: float
    response: Response | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """An exchange whose answer was checked.

    kind: answered: 200 with a ranking of all candidates, in time.  late: the same, but too late.  refused: 429 with a
    Retry-After.  failed: another status.  wrong: an answer that contradicts its request or its status.  lost: none.
    latency_s: from when the request was due.  lateness_s: the part of it before the generator sent the request.
    """

    kind: Kind
    status: int
    due_s: float
    done_s: float
    lateness_s: float | None
    num_candidates: int
    tokens: int = 0
    retry_after_s: int | None = None

    @property
    def latency_s(self) -> float:
        return self.done_s - self.due_s


def judge(exchange: Exchange, limit_s: float) -> Outcome:
    """Checks the answer of an exchange. limit_s: seconds after which it is late."""
    response = exchange.response
    due_s, done_s, count = exchange.due_s, exchange.done_s, exchange.request.num_candidates
    lateness_s = None if exchange.sent_s is None else exchange.sent_s - due_s
    if response is None:
        return Outcome("lost", 0, due_s, done_s, lateness_s, count)
    kind: Kind = "failed"
    tokens, retry_after_s = 0, None
    if response.status == HTTPStatus.OK:
        kind = "late" if done_s - due_s > limit_s else "answered"
        try:
            tokens = _read(json.loads(response.body), count)
        except (ValueError, KeyError, TypeError):
            kind = "wrong"
    elif response.status == HTTPStatus.TOO_MANY_REQUESTS:
        told = response.headers.get("retry-after", "")
        retry_after_s = int(told) if told.isdecimal() else None
        kind = "refused" if retry_after_s else "wrong"
    return Outcome(kind, response.status, due_s, done_s, lateness_s, count, tokens, retry_after_s)


def _read(answer: Any, num_candidates: int) -> int:
    """Checks an answer; returns its token count, 0 for TEI's, which have none. A wrong answer raises an error."""
    if isinstance(answer, list):
        check_ranking([{"index": one["index"], "relevance_score": one["score"]} for one in answer], num_candidates)
        return 0
    check_ranking(answer["results"], num_candidates)
    tokens: int = answer["usage"]["total_tokens"]
    return tokens


def check_ranking(results: Sequence[Any], num_candidates: int) -> None:
    """Raises ValueError unless the results name each candidate once, with finite, non-increasing scores."""
    if sorted(result["index"] for result in results) != list(range(num_candidates)):
        raise ValueError(f"expected {num_candidates} candidates, each once")
    scores = [result["relevance_score"] for result in results]
    if not all(map(math.isfinite, scores)):
        raise ValueError("a score is not finite")
    if any(later > earlier for earlier, later in itertools.pairwise(scores)):
        raise ValueError("the scores rise")
