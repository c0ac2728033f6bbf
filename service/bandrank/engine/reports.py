"""Reports of what an answer cost, the source of metrics, response fields and traces."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Span:
    """A step of a stage: "tokenize", "cache", "encode", "queue" or "score". start, end: monotonic seconds."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class StageReport:
    """What one stage did for a request.

    start, end: monotonic seconds.  spans: its steps, in the order of their starts.  num_candidates: how many it scored.
    num_tokens: token ids of the query and of each scored candidate, including cached ones.
    truncated_query_tokens, truncated_candidate_tokens: word pieces cut from the query and from each scored candidate.
    cache_hits, cache_misses: candidates looked up, if the scorer precomputes.  instructed: whether the scorer read an
    instruction beside the query.  pooled: whether its scores are of the pooled form.  pair_exceeded: whether a
    candidate and the query, which is never cut, had more token ids than the request allows a pair.  query_exceeded:
    whether more word pieces of the query were read than the request allows.
    """

    stage: str
    start: float
    end: float
    spans: tuple[Span, ...]
    num_candidates: int = 0
    num_tokens: int = 0
    truncated_query_tokens: int = 0
    truncated_candidate_tokens: Sequence[int] = ()
    cache_hits: int = 0
    cache_misses: int = 0
    instructed: bool = False
    pooled: bool = False
    pair_exceeded: bool = False
    query_exceeded: bool = False

    @property
    def total_s(self) -> float:
        return self.end - self.start

    @property
    def truncated_tokens(self) -> int:
        """The number of word pieces cut from the query and the candidates."""
        return self.truncated_query_tokens + sum(self.truncated_candidate_tokens)

    def seconds(self, step: str) -> float:
        """The seconds that a step took; 0 if the stage has no such step."""
        return sum((span.seconds for span in self.spans if span.name == step), 0.0)


def covered_s(times: Iterable[tuple[float, float]]) -> float:
    """The seconds in which at least one interval lasted; the queries of a request are answered side by side.

    times: the starts and ends of the intervals.
    """
    seconds, until = 0.0, -math.inf
    for start, end in sorted(times):
        seconds += max(0.0, end - max(start, until))
        until = max(until, end)
    return seconds


@dataclass
class Recorder:
    """Records spans on a clock."""

    clock: Callable[[], float]
    spans: list[Span] = field(default_factory=list)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Records the time that the block takes, if it does not raise."""
        start = self.clock()
        yield
        self.spans.append(Span(name, start, self.clock()))
