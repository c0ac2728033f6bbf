"""A polite client beside a flood of large requests, simulated on a clock of the test: who waits, and how long."""

import heapq
import itertools
import math
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.tasks import LANE, Clock, task_of

from bandrank.engine.clients import Client
from bandrank.engine.task_queue import TaskQueue
from bandrank.engine.tasks import AnySlice
from bandrank.engine.tickets import Ticket
from bandrank.errors import Overloaded

POLITE, FLOOD = Client("polite"), Client("flood")
TIMEOUT_S, ENDS_S = 60.0, 120.0
BATCH, CANDIDATES_A_SECOND, BATCH_S = 54, 100.0, 0.02  # a batch takes BATCH_S longer than its candidates
SMALL, LARGE = (10, 10, 10, 10, 30), (200, 400, 600, 800, 1000)


@dataclass
class Simulation:
    """A queue, a thread that scores, and clients whose requests arrive at times of their own.

    latencies_s: of answered requests, by client.  refused, late: the clients of those without an answer in time.
    """

    clock: Clock = field(default_factory=Clock)
    latencies_s: dict[Client, list[float]] = field(default_factory=lambda: {POLITE: [], FLOOD: []})
    refused: list[Client] = field(default_factory=list)
    late: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = TaskQueue(
            max_waiting_rows=math.inf, max_wait_s=TIMEOUT_S, clock=self.clock, max_batch_rows=BATCH, patience=4.0
        )
        self.queue.throughput.report(LANE.name, BATCH, BATCH / CANDIDATES_A_SECOND + BATCH_S)
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._number = itertools.count()
        self._scoring = False

    def arrivals(self, client: Client, sizes: tuple[int, ...], a_second: float, seed: int) -> None:
        """Schedules requests of these sizes as a Poisson process."""
        rng = random.Random(seed)
        moment = rng.expovariate(a_second)
        while moment < ENDS_S:
            self._at(moment, self._arrive, client, rng.choice(sizes))
            moment += rng.expovariate(a_second)

    def run(self) -> None:
        while self._events:
            self.clock.now, _, happens, facts = heapq.heappop(self._events)
            happens(*facts)

    def _at(self, moment: float, happens: Callable[..., None], *facts: Any) -> None:
        heapq.heappush(self._events, (moment, next(self._number), happens, facts))

    def _arrive(self, client: Client, size: int) -> None:
        ticket, started = Ticket(client, self.clock.now + TIMEOUT_S), self.clock.now
        task = task_of([1] * size)
        task.ticket = ticket
        admitted = ExitStack()
        try:
            admitted.enter_context(self.queue.admitted(ticket, {LANE: size}))
            self.queue.put(task)
        except Overloaded:
            admitted.close()
            self.refused.append(client)
            return

        def end(_: object) -> None:
            admitted.close()
            if task.future.exception() is not None:
                self.late.append(client)
            else:
                self.latencies_s[client].append(self.clock.now - started)

        task.future.add_done_callback(end)
        self._score()

    def _score(self) -> None:
        if not self._scoring and (batch := self.queue.take_batch(BATCH, wait=False)):
            self._scoring = True
            rows = sum(part.rows for part in batch)
            seconds = rows / CANDIDATES_A_SECOND + BATCH_S
            self._at(self.clock.now + seconds, self._scored, batch, rows, seconds)

    def _scored(self, batch: list[AnySlice], rows: float, seconds: float) -> None:
        self._scoring = False
        self.queue.throughput.report(LANE.name, rows, seconds)
        for part in batch:
            part.task.add_results([0.0] * len(part))
        self._score()


def simulated(seed: int, *, flood: float) -> Simulation:
    """Two minutes of a polite client that asks for a tenth of the capacity, beside a flood of `flood` times the
    capacity.
    """
    simulation = Simulation()
    simulation.arrivals(POLITE, SMALL, 0.1 * CANDIDATES_A_SECOND * len(SMALL) / sum(SMALL), seed)
    if flood:
        simulation.arrivals(FLOOD, LARGE, flood * CANDIDATES_A_SECOND * len(LARGE) / sum(LARGE), seed + 1)
    simulation.run()
    return simulation


@pytest.mark.parametrize("flood", [1.5, 3.0])
def test_what_is_admitted_is_answered_in_time(flood: float) -> None:
    """A request that would be late is refused on arrival instead."""
    for seed in range(5):
        simulation = simulated(seed, flood=flood)
        assert simulation.late == []
        assert FLOOD in simulation.refused
        assert sum(simulation.latencies_s[FLOOD]) > 0


def test_a_polite_client_hardly_waits_for_a_flood() -> None:
    """A flood refuses none of the polite client's requests, and raises their p99 latency by at most half."""
    p99_s = []
    for flood in (0.0, 3.0):
        simulations = [simulated(seed, flood=flood) for seed in range(10)]
        assert all(POLITE not in each.refused for each in simulations)
        latencies_s = sorted(seconds for each in simulations for seconds in each.latencies_s[POLITE])
        p99_s.append(latencies_s[int(0.99 * len(latencies_s))])
    assert p99_s[1] <= 1.5 * p99_s[0]
