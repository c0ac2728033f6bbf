"""The page, and the samples beside it."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, pairwise

from bandrank_bench.aims import aims_table
from bandrank_bench.calibrate import TOLERANCE, clean
from bandrank_bench.cpu.agreement import Agreement
from bandrank_bench.cpu.report import PATTERNS, agreement_table
from bandrank_bench.output import bullets, json_line, table
from bandrank_bench.overload.summary import Percentiles
from bandrank_bench.services.aims import BUSY, aims
from bandrank_bench.services.contenders import Contender
from bandrank_bench.services.experiments import Plan
from bandrank_bench.services.memory import Memory
from bandrank_bench.services.queueing import of_the_queue
from bandrank_bench.services.runs import Figures, Run, counted, spread, together

QUEUE = ("p99/p50 of the queue alone", "p99 over the queue's")


@dataclass(frozen=True)
class Results:
    """All results. tried: answers per second of infinity's configurations.  left_out: the reasons, by name.  memory: of
    services on this machine, before and after the runs.
    """

    contenders: Sequence[Contender]
    runs: Sequence[Run]
    agreements: Sequence[Agreement]
    tried: Mapping[Contender, float]
    left_out: Mapping[str, str]
    memory: Mapping[str, tuple[Memory, Memory]]
    calm_s: float
    facts: Mapping[str, str]

    @cached_property
    def counted(self) -> list[Run]:
        """The runs that the figures are of."""
        return counted(self.runs, self.calm_s)


def markdown(results: Results, plan: Plan) -> str:
    """The page."""
    return "\n\n".join(chain(_head(results), _rates(results, plan), _foot(results, plan))) + "\n"


def json_lines(results: Results) -> str:
    """A line per run, with the times of its requests as `_steps`; those of the queue alone can be computed again."""
    lines = []
    for run in results.runs:
        facts = asdict(run) | {"window": [run.window.from_s, run.window.to_s]}
        facts["outcomes"] = Counter(one.kind for one in run.outcomes)
        facts["took_steps"] = _steps(one.done_s - one.due_s for one in run.outcomes)
        del facts["queue_s"]
        lines.append(json_line(facts))
    return "".join(lines)


def _steps(seconds: Iterable[float]) -> list[int]:
    """Times to within 1%, as small numbers, which compress well: 100 times the logarithms of their milliseconds, in
    ascending order, each as the difference from the one before. `itertools.accumulate` gives the logarithms back.
    """
    logarithms = sorted(round(100 * math.log(max(1.0, 1e3 * each))) for each in seconds)
    return [after - before for before, after in pairwise([0, *logarithms])]


def _head(results: Results) -> Iterator[str]:
    yield "# Services beside each other"
    yield (
        "bandrank and other re-ranking services over HTTP on the loopback interface, with the same weights and texts "
        "for all. One service is measured at a time, while the others are stopped. Compare the ratios; the times hold "
        "for this machine only.\n\n"
        "Written by `make bench`."
    )
    yield bullets(results.facts)
    yield "## Aims"
    yield aims_table(aims(results.counted, results.contenders))
    yield (
        "**p99 over p50.** With a Poisson process, most of this ratio is queueing: requests arrive in bursts, and a "
        "service whose work grows with the tokens, as on a CPU, can only work through a burst one request after the "
        'other. The "queue alone" below is an ideal server of the same capacity that answers the very same arrivals in '
        f"their order and does nothing else. In the long run, its p99 is {of_the_queue(BUSY):.1f} times its p50 for "
        f"equal requests at {BUSY:.0%}, and no other order spreads their times less. Arrivals at equal intervals, as "
        "load generators with a constant rate send them, have no bursts, so they show the spread of the service itself."
    )


def _rates(results: Results, plan: Plan) -> Iterator[str]:
    yield "## Clients that wait for their answers"
    yield (
        f"Each sends {plan.candidates} candidates of 75 tokens on average, waits for the answer, and sends new ones. "
        f"Goodput is the right answers per second within {plan.deadline_s:g} s. p50 and p99 are milliseconds."
    )
    for clients in plan.clients:
        rows = _rows(results, clients=clients)
        head = ["service", "answers/s", "goodput/s", "p50", "p99", "sent", "not in time"]
        yield f"### {clients} {'client' if clients == 1 else 'clients'}"
        yield table(head, [[name, *_closed(found)] for name, found in rows])
    yield "## Arrivals at a share of each one's capacity"
    yield (
        "Each request is sent at its time, whether or not earlier ones have been answered, and its latency counts from "
        "that time. The times are those of a Poisson process, or at equal intervals where the heading says so. "
        "Capacity is the mean of what the service answered to 8 clients and more in the same round."
    )
    head = ["service", "offered/s", "goodput/s", "p50", "p99", "p99/p50", *QUEUE, "sent", "not in time"]
    for load, steady in [*((load, False) for load in plan.loads), *((load, True) for load in plan.steady_loads)]:
        yield f"### {load:.0%}{', equal intervals' * steady}"
        yield table(head, [[name, *_open(found)] for name, found in _rows(results, load=load, steady=steady)])


def _foot(results: Results, plan: Plan) -> Iterator[str]:
    yield "## Memory"
    yield "MiB of each service's process: resident and proportional before the runs, and the peak of resident memory."
    rows = [
        [name, f"{idle.resident:.0f}", f"{idle.proportional:.0f}", f"{end.peak:.0f}"]
        for name, (idle, end) in results.memory.items()
    ]
    yield table(["service", "idle: resident", "proportional", "peak"], rows)
    if results.tried:
        yield "## Configurations of infinity"
        yield "Answers per second to 8 clients, in a short run. The fastest of each precision is compared above."
        tried = [[one.name, f"{rate:.1f}"] for one, rate in results.tried.items()]
        yield table(["configuration", "answers/s"], tried)
    yield "## Scores"
    yield "The largest difference from the scores of `transformers` in float32, and the spread of the scores."
    yield agreement_table(results.agreements)
    if results.left_out:
        yield "Left out: " + "; ".join(f"{name}: {why}" for name, why in results.left_out.items()) + "."
    yield "## How it is measured"
    yield bullets({one.name: one.configured for one in results.contenders})
    calm = clean(results.runs, results.calm_s)
    known = {run.what for run in calm}
    restless = {run.what: run for run in results.runs if run.what not in known}.values()
    late = [one.p99 for run in results.runs if (one := _lateness(run))]
    yield (
        f"{PATTERNS}\n\n"
        f"Rounds: {plan.rounds}. In each, the services took turns in random order, with {plan.closed_s:g} s "
        f"of each number of clients and {plan.open_s:g} s of each load, after {plan.warm_up_s:g} s that do not count. "
        f"{len(calm)} of {len(results.runs)} runs were between two products of known cost that were both within "
        f"{TOLERANCE:g} times the calm speed; only they count where a service has any.\n\n"
        "The generator sent 99% of its requests within "
        f"{max(late, default=0):.0f} ms of their times in its worst run; it used at most "
        f"{max((run.busy.generator for run in results.runs), default=0):.2f} processors, and other processes "
        f"{max((run.busy.others for run in results.runs), default=0):.2f}.\n\n"
        "By default bandrank would refuse a request that has to wait for too long; here it is "
        "as patient as the others. The ONNX files for infinity's engine optimum find out themselves which tokens are "
        "the query's, because the engine does not tell them."
    )
    if restless:
        yield "These count although the machine was slow before or after them: " + "; ".join(map(_what, restless)) + "."


def _what(run: Run) -> str:
    what = f"{run.clients} clients" if run.load is None else f"{run.load:.0%}"
    return f"{run.contender}, {what}{', equal intervals' * run.steady}"


def _rows(
    results: Results, clients: int | None = None, load: float | None = None, *, steady: bool = False
) -> Iterator[tuple[str, Figures]]:
    wanted = (clients, load, steady)
    for one in results.contenders:
        found = together(results.counted, one.name, lambda run: (run.clients, run.load, run.steady) == wanted)
        if found is not None:
            yield one.name, found


def _closed(found: Figures) -> list[str]:
    rates = [f"{found.throughput:.1f}", f"{found.goodput:.1f}"]
    return [*rates, *_times(found.latency), f"{found.sent:,}", f"{found.unanswered:,}"]


def _open(found: Figures) -> list[str]:
    over_queue = found.latency.p99 / found.queue.p99 if found.latency and found.queue else None
    ratios = (spread(found.latency), spread(found.queue), over_queue)
    spreads = ["-" if ratio is None else f"{ratio:.1f}" for ratio in ratios]
    rates = [f"{found.offered:.1f}", f"{found.goodput:.1f}"]
    return [*rates, *_times(found.latency), *spreads, f"{found.sent:,}", f"{found.unanswered:,}"]


def _times(times: Percentiles | None) -> list[str]:
    return [f"{times.p50:,.0f}", f"{times.p99:,.0f}"] if times else ["-", "-"]


def _lateness(run: Run) -> Percentiles | None:
    return Percentiles.of(one.lateness_s for one in run.outcomes if one.lateness_s is not None and run.load is not None)
