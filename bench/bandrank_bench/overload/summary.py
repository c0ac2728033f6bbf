"""The rates and times of a run."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from bandrank_bench.overload.loops import Window
from bandrank_bench.overload.outcomes import Kind, Outcome
from bandrank_bench.overload.processors import Busy

RIGHT: tuple[Kind, ...] = ("answered", "late")


@dataclass(frozen=True)
class Percentiles:
    """Percentiles in milliseconds. count: the number of times."""

    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Self | None:
        """The percentiles of times; None if there are none."""
        ms = sorted(1e3 * one for one in seconds)
        return cls(len(ms), percentile(ms, 50), percentile(ms, 99), ms[-1]) if ms else None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile by nearest rank: the smallest value that at least `percent` of all values do not exceed."""
    return ordered[max(1, math.ceil(percent / 100 * len(ordered))) - 1]


@dataclass(frozen=True)
class Summary:
    """What a client saw in a run.

    Counts are of all requests; rates (per second) and times are of the run's window.  offered: requests due in it.
    goodput: requests answered in it, correctly and in time.  admitted, refused: from when a request was due until its
    answer was read.  generator: how late requests were sent.  tokens: per candidate, over all stages, with its share of
    the query.  statuses: of failed requests.  busy: processors in use.
    """

    sent: int
    counts: Counter[Kind]
    statuses: Counter[int]
    offered: float
    goodput: float
    goodput_candidates: float
    admitted: Percentiles | None
    refused: Percentiles | None
    generator: Percentiles | None
    retry_after_s: Counter[int]
    tokens: float
    busy: Busy

    @property
    def unexpected(self) -> int:
        """Requests that were neither answered in time nor refused."""
        return self.sent - self.counts["answered"] - self.counts["refused"]


def summarise(outcomes: Sequence[Outcome], window: Window, busy: Busy) -> Summary:
    """Summarises a run."""
    inside = [one for one in outcomes if window.holds(one.due_s)]
    good = [one for one in outcomes if one.kind == "answered" and window.holds(one.done_s)]
    return Summary(
        sent=len(outcomes),
        counts=Counter(one.kind for one in outcomes),
        statuses=Counter(one.status for one in outcomes if one.kind == "failed"),
        offered=len(inside) / window.seconds,
        goodput=len(good) / window.seconds,
        goodput_candidates=sum(one.num_candidates for one in good) / window.seconds,
        admitted=Percentiles.of(one.latency_s for one in inside if one.kind in RIGHT),
        refused=Percentiles.of(one.latency_s for one in inside if one.kind == "refused"),
        generator=Percentiles.of(one.lateness_s for one in inside if one.lateness_s is not None),
        retry_after_s=Counter(one.retry_after_s for one in outcomes if one.retry_after_s is not None),
        tokens=fmean([one.tokens / one.num_candidates for one in good]) if good else math.nan,
        busy=busy,
    )
