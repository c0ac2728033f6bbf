"""The runs of a service: closed loops, whose clients wait for answers, and arrivals at a share of the capacity."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from statistics import fmean

from bandrank_bench.calibrate import Calibration
from bandrank_bench.output import say
from bandrank_bench.overload.loops import Sender, Window, closed_loop, open_loop, poisson_arrivals, steady_arrivals
from bandrank_bench.overload.requests import Request, requests
from bandrank_bench.service import Service
from bandrank_bench.services.contenders import Contender
from bandrank_bench.services.queueing import first_come_first_served
from bandrank_bench.services.runs import Run, figures

FIRST_NUMBER = 1_000_000  # of a text; all numbers of a run have seven digits
AHEAD = 100  # requests made before a closed loop, per second of it
SATURATING = 8  # clients that saturate a service with one batch at a time


@dataclass(frozen=True)
class Plan:
    """How to measure. loads: for Poisson arrivals.  steady_loads: for arrivals at equal intervals.  deadline_s: after
    which an answer is late.  candidates: per request.
    """

    clients: Sequence[int]
    loads: Sequence[float]
    steady_loads: Sequence[float]
    closed_s: float
    open_s: float
    warm_up_s: float
    deadline_s: float
    candidates: int
    rounds: int
    seed: int = 0


@dataclass(frozen=True)
class Turn:
    """A service's part of a round. stream: its requests, with the same texts for every service."""

    contender: Contender
    service: Service
    number: int
    stream: Iterator[Request]


class Laboratory:
    """Runs the experiments of a plan on one service after the other, with texts that never repeat."""

    def __init__(self, plan: Plan, calibration: Calibration, runner: asyncio.Runner) -> None:
        self._plan, self._calibration, self._runner = plan, calibration, runner
        self._numbers = count(FIRST_NUMBER)

    def round(self, contender: Contender, service: Service, number: int) -> list[Run]:
        """Does all runs of a contender once: closed loops, then open ones at shares of the capacity that these showed.

        Raises RuntimeError if the contender answers nothing.
        """
        turn = self.turn(contender, service, number)
        closed = [self.closed(turn, clients) for clients in self._plan.clients]
        if not (capacity := fmean(run.throughput for run in closed if (run.clients or 0) >= SATURATING)):
            raise RuntimeError(f"{contender.name} answered nothing")
        poisson = [self.opened(turn, load, capacity) for load in self._plan.loads]
        return closed + poisson + [self.opened(turn, load, capacity, steady=True) for load in self._plan.steady_loads]

    def turn(self, contender: Contender, service: Service, number: int = 0) -> Turn:
        """Prepares the turn of a service in a round."""
        stream = requests(
            seed=self._plan.seed + number,
            numbers=self._numbers,
            candidates=(self._plan.candidates,),
            fields=contender.fields,
            texts_field=contender.texts_field,
        )
        return Turn(contender, service, number, stream)

    def closed(self, turn: Turn, clients: int) -> Run:
        """Runs a closed loop, in which each client asks again as soon as it has its answer."""
        plan, name = self._plan, turn.contender.name
        window = Window(plan.warm_up_s, plan.warm_up_s + plan.closed_s)
        ready = chain(list(islice(turn.stream, round(AHEAD * window.to_s))), turn.stream)
        before_s = self._calibration.await_calm()
        outcomes, busy = self._runner.run(
            closed_loop(turn.service, ready, window, plan.deadline_s, connections=clients)
        )
        after_s = self._calibration.time()
        run = Run(name, turn.number, outcomes, window, busy, before_s, after_s, clients=clients)
        say(f"{name}, {clients} clients: {described(run)}")
        return run

    def opened(self, turn: Turn, load: float, capacity: float, *, steady: bool = False) -> Run:
        """Runs an open loop at a share of the capacity; in units of 1/capacity, all services get the same arrivals."""
        plan, name = self._plan, turn.contender.name
        window = Window(plan.warm_up_s, plan.warm_up_s + plan.open_s)
        rate = load * capacity
        times = (
            steady_arrivals(rate, window.to_s)
            if steady
            else poisson_arrivals(rate, window.to_s, plan.seed + turn.number)
        )
        sent = list(islice(turn.stream, len(times)))
        queue_s = first_come_first_served(times, _work(sent, capacity))
        before_s = self._calibration.await_calm()
        (outcomes,), busy = self._runner.run(open_loop(turn.service, [Sender(sent, times)], window, plan.deadline_s))
        after_s = self._calibration.time()
        run = Run(
            name, turn.number, outcomes, window, busy, before_s, after_s, load=load, steady=steady, queue_s=queue_s
        )
        say(f"{name}, {load:.0%} of {capacity:.1f}/s{', equal intervals' * steady}: {described(run)}")
        return run


def _work(sent: Sequence[Request], capacity: float) -> list[float]:
    """Estimates for how many seconds each request keeps a service busy, by its share of the bytes."""
    typical = fmean(len(one.message) for one in sent) if sent else 1.0
    return [len(one.message) / typical / capacity for one in sent]


def described(run: Run) -> str:
    """Describes a run in a line."""
    seen = figures([run])
    times = f", p50 {seen.latency.p50:.0f} ms, p99 {seen.latency.p99:.0f} ms" if seen.latency else ""
    return f"{seen.throughput:.1f} answers a second, {seen.unanswered} of {seen.sent} not in time{times}"
