"""The experiments: capacity, multiples of it, and one client beside another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, cycle, islice
from math import ceil
from typing import Any

from bandrank_bench.output import say
from bandrank_bench.overload.connections import HOST
from bandrank_bench.overload.loops import Sender, Window, closed_loop, open_loop, poisson_arrivals
from bandrank_bench.overload.requests import Request, requests
from bandrank_bench.overload.summary import Summary, summarise
from bandrank_bench.service import Service

FLOOD = 3.0  # times the capacity
LARGE = (200, 400, 600, 800, 1000)  # candidates per request of the large flood
POLITE_ADDRESS, FLOOD_ADDRESS = "127.0.0.2", "127.0.0.3"
FIRST_NUMBER = 1_000_000  # of a text; all numbers of a run have seven digits
PROBE_FACTOR = 2.0  # requests made ahead for a closed loop, as a multiple of the rate of a short one


@dataclass(frozen=True)
class Plan:
    """How to measure.

    candidates: numbers of candidates to draw from.  fields: further fields of a body.  limit_s: after which an answer
    is late.  repeat_after: requests after which texts repeat; 0: never.  polite_share: of the capacity.
    """

    rates: Sequence[float]
    seconds: float
    warm_up_s: float
    capacity_s: float
    polite_s: float
    connections: int
    candidates: Sequence[int]
    fields: dict[str, Any]
    limit_s: float
    polite_share: float
    repeat_after: int
    seed: int


@dataclass(frozen=True)
class Point:
    """An open loop at a multiple of the capacity measured right before it, and the capacity right after it."""

    multiple: float
    before: Summary
    summary: Summary
    after: Summary

    @property
    def share(self) -> float:
        """The goodput relative to the capacity in those minutes, as machines change their speed."""
        return self.summary.goodput / self._capacity

    @property
    def offered_share(self) -> float:
        """The offered load relative to the same capacity."""
        return self.summary.offered / self._capacity

    @property
    def change(self) -> float:
        """The relative change of the capacity meanwhile."""
        return abs(self.after.goodput / self.before.goodput - 1)

    @property
    def _capacity(self) -> float:
        return (self.before.goodput + self.after.goodput) / 2


@dataclass(frozen=True)
class Company:
    """A polite client, and the flood beside it if there is one."""

    flood: str
    polite: Summary
    flooding: Summary | None


@dataclass(frozen=True)
class Measured:
    """All measurements. capacity: before the first point."""

    capacity: Summary
    points: list[Point]
    companies: list[Company]


class Laboratory:
    """Runs the experiments of a plan on a service."""

    def __init__(self, service: Service, plan: Plan) -> None:
        self._service, self._plan = service, plan
        self._numbers = count(FIRST_NUMBER)
        self._mix = self._requests(plan.seed, plan.candidates)
        if plan.repeat_after:
            self._mix = cycle(islice(self._mix, plan.repeat_after))

    async def measure(self) -> Measured:
        """Runs all experiments."""
        first = before = await self.capacity()
        points = []
        for multiple in self._plan.rates:
            summary = await self.overload(multiple * before.goodput)
            after = await self.capacity()
            points.append(Point(multiple, before, summary, after))
            before = after
        return Measured(first, points, await self.companies(before) if self._plan.polite_s else [])

    async def capacity(self) -> Summary:
        """Runs a closed loop, whose connections are never idle."""
        plan = self._plan
        probed = await self._closed(self._mix, Window(0.0, plan.warm_up_s))
        window = Window(plan.warm_up_s, plan.warm_up_s + plan.capacity_s)
        ahead = ceil(PROBE_FACTOR * probed.sent * window.to_s / plan.warm_up_s)
        summary = await self._closed(chain(list(islice(self._mix, ahead)), self._mix), window)
        say(f"capacity: {described(summary)}")
        if not summary.goodput:
            raise RuntimeError("the capacity cannot be measured: no request of a closed loop was answered in time")
        return summary

    async def overload(self, rate: float) -> Summary:
        """Runs an open loop at a rate of requests per second."""
        plan = self._plan
        window = Window(plan.warm_up_s, plan.warm_up_s + plan.seconds)
        sender = self._sender(rate, window, self._mix, plan.seed)
        (summary,) = await self._open([sender], window)
        say(f"{rate:.1f}/s: {described(summary)}")
        return summary

    async def companies(self, capacity: Summary) -> list[Company]:
        """Runs the polite client alone, beside a flood of requests like its own, and beside a flood of large ones.

        It sends the same requests at the same times in each run, except for the numbers that make the texts new.
        """
        plan = self._plan
        window = Window(plan.warm_up_s, plan.warm_up_s + plan.polite_s)
        like = f"{FLOOD:g} x capacity, requests like its own"
        large = f"{FLOOD:g} x capacity in candidates, {min(LARGE)} to {max(LARGE):,} in a request"
        large_rate = FLOOD * capacity.goodput_candidates * len(LARGE) / sum(LARGE)
        floods: list[tuple[str, float, Sequence[int]]] = [
            ("none", 0.0, ()),
            (like, FLOOD * capacity.goodput, plan.candidates),
            (large, large_rate, LARGE),
        ]
        found = []
        for name, rate, candidates in floods:
            own = self._requests(plan.seed + 1, plan.candidates)
            rate_of_polite = plan.polite_share * capacity.goodput
            senders = [self._sender(rate_of_polite, window, own, plan.seed + 1, POLITE_ADDRESS)]
            if candidates:
                theirs = self._requests(plan.seed + 2, candidates)
                senders.append(self._sender(rate, window, theirs, plan.seed + 2, FLOOD_ADDRESS))
            polite, *flooding = await self._open(senders, window)
            say(f"polite beside {name}: {described(polite)}")
            found.append(Company(name, polite, flooding[0] if flooding else None))
        return found

    def _requests(self, seed: int, candidates: Sequence[int]) -> Iterator[Request]:
        return requests(seed=seed, numbers=self._numbers, candidates=candidates, fields=self._plan.fields)

    def _sender(self, rate: float, window: Window, stream: Iterator[Request], seed: int, address: str = HOST) -> Sender:
        times = poisson_arrivals(rate, window.to_s, seed)
        return Sender(list(islice(stream, len(times))), times, address)

    async def _open(self, senders: Sequence[Sender], window: Window) -> list[Summary]:
        outcomes, busy = await open_loop(self._service, senders, window, self._plan.limit_s)
        return [summarise(of_sender, window, busy) for of_sender in outcomes]

    async def _closed(self, stream: Iterator[Request], window: Window) -> Summary:
        outcomes, busy = await closed_loop(
            self._service, stream, window, self._plan.limit_s, connections=self._plan.connections
        )
        return summarise(outcomes, window, busy)


def described(summary: Summary) -> str:
    """Describes a run in a line."""
    counts = ", ".join(f"{number} {kind}" for kind, number in sorted(summary.counts.items()))
    times = f", p50 {summary.admitted.p50:.0f} ms, p99 {summary.admitted.p99:.0f} ms" if summary.admitted else ""
    rate = f"{summary.goodput:.1f} answers and {summary.goodput_candidates:.0f} candidates a second"
    return f"{rate} of {summary.sent} requests ({counts}){times}"
