"""A run of clients against a service, and figures over its rounds."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bandrank_bench.calibrate import clean
from bandrank_bench.overload.loops import Window
from bandrank_bench.overload.outcomes import Outcome
from bandrank_bench.overload.processors import Busy
from bandrank_bench.overload.summary import RIGHT, Percentiles


@dataclass(frozen=True)
class Run:
    """A run: a closed loop with so many `clients`, or an open loop with a `load` as a share of the capacity.

    steady: whether arrivals are at equal intervals, not a Poisson process.  queue_s: the seconds each arrival of an
    open loop would take by queueing alone.  before_s, after_s: of the calibration product.  busy: processors in use.
    """

    contender: str
    round_number: int
    outcomes: Sequence[Outcome]
    window: Window
    busy: Busy
    before_s: float
    after_s: float
    clients: int | None = None
    load: float | None = None
    steady: bool = False
    queue_s: Sequence[float] = ()

    @property
    def what(self) -> tuple[str, int | None, float | None, bool]:
        """What the same runs of all rounds have in common."""
        return self.contender, self.clients, self.load, self.steady

    @property
    def seconds(self) -> float:
        """From the start to the last answer: answers come in bursts, as batches end, which a window could cut."""
        return max((one.done_s for one in self.outcomes), default=self.window.to_s)

    @property
    def throughput(self) -> float:
        """Correct answers per second, in time or not."""
        return sum(one.kind in RIGHT for one in self.outcomes) / self.seconds


@dataclass(frozen=True)
class Figures:
    """Figures of runs; rates are per second.

    latency, queue: milliseconds from when requests were due until their answers, measured and by queueing alone; those
    due during the warm-up are left out.  unanswered: requests not answered correctly and in time.
    """

    sent: int
    unanswered: int
    offered: float
    throughput: float
    goodput: float
    latency: Percentiles | None
    queue: Percentiles | None


def figures(runs: Sequence[Run]) -> Figures:
    """The figures of the same run over several rounds."""
    seconds = sum(run.seconds for run in runs)
    everything = [one for run in runs for one in run.outcomes]
    good = sum(one.kind == "answered" for one in everything)
    inside = [one for run in runs for one in run.outcomes if run.window.holds(one.due_s)]
    queued = [
        took
        for run in runs
        for one, took in zip(run.outcomes, run.queue_s, strict=bool(run.queue_s))
        if run.window.holds(one.due_s)
    ]
    return Figures(
        sent=len(everything),
        unanswered=len(everything) - good,
        offered=len(inside) / sum(run.window.seconds for run in runs),
        throughput=sum(one.kind in RIGHT for one in everything) / seconds,
        goodput=good / seconds,
        latency=Percentiles.of(one.latency_s for one in inside if one.kind in RIGHT),
        queue=Percentiles.of(queued),
    )


def counted(runs: Iterable[Run], calm_s: float) -> list[Run]:
    """The runs that count: of the same runs of all rounds, those between calm products, or all if none is."""
    same: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        same[run.what].append(run)
    return [run for rounds in same.values() for run in clean(rounds, calm_s) or rounds]


def together(runs: Sequence[Run], contender: str, chosen: Callable[[Run], bool]) -> Figures | None:
    """The figures of a contender's chosen runs; None if there are none."""
    found = [run for run in runs if run.contender == contender and chosen(run)]
    return figures(found) if found else None


def spread(times: Percentiles | None) -> float | None:
    """The 99th percentile over the median."""
    return times.p99 / times.p50 if times else None
