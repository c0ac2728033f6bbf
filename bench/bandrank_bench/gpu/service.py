"""The service over HTTP, in a process of its own, with the scorers that ship. Several processes send, so that it is not
the clients that are measured.
"""

import asyncio
import atexit
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from itertools import chain, count, cycle, islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import NamedTuple

from bandrank_bench.gpu.lab import Lab, Skipped
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_bench.overload.loops import Window, closed_loop
from bandrank_bench.overload.outcomes import Outcome
from bandrank_bench.overload.processors import Busy
from bandrank_bench.overload.requests import passages, requests
from bandrank_bench.overload.summary import summarise
from bandrank_bench.service import Service, running_service
from bandrank_bench.services.memory import MIB, Memory

NEEDED = ("fastapi", "httptools", "prometheus_client", "pydantic_settings", "redis", "uvicorn")
SENDERS = 4  # processes
AHEAD = 150  # requests that each makes before a run, per second of it
FIRST_NUMBER, NUMBERS = 1_000_000, 200_000  # of texts, and how many each has in a run; all have seven digits


class Load(NamedTuple):
    """Requests of a kind. cached: all have the same candidates."""

    candidates: int
    strategy: str
    cached: bool = False


LOADS = (Load(100, "auto"), Load(100, "accurate"), Load(1000, "auto", cached=True), Load(1000, "fast", cached=True))
DRY_LOADS = (Load(3, "accurate"), Load(5, "fast", cached=True))
# Python's lock bounds what one service answers, while the card waits: several on one card may answer more.
SERVICES, SHARED_LOADS = 4, (Load(100, "auto"), Load(1000, "fast", cached=True))


def cases(lab: Lab) -> Iterator[Case]:
    """From the service's start to its end, at last with others on the same card."""
    served = Served(lab)
    yield Case("start", served.start)
    for load in DRY_LOADS if lab.dry else LOADS:
        for clients in (2,) if lab.dry else (1, 8, 32):
            yield Case(f"{_kind(load)}, {clients} at once", partial(served.measure, load, clients))
    services, clients = (2, 2) if lab.dry else (SERVICES, 32)
    yield Case(f"start, {services} services", partial(served.start_others, services - 1))
    for load in DRY_LOADS if lab.dry else SHARED_LOADS:
        case = f"{_kind(load)}, {clients} at once, {services} services"
        yield Case(case, partial(served.measure, load, clients))
    yield Case("end", served.end)


def _kind(load: Load) -> str:
    return f"{load.candidates} {'cached' if load.cached else 'new'}, {load.strategy}"


class Served:
    """The services, from the case that starts the first to the one that ends all, and the processes that send."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._stack, self._seeds = lab, ExitStack(), count(1)
        self._window = Window(0.0, 0.5) if lab.dry else Window(1.0, 4.0)
        self._services: list[Service] = []
        atexit.register(self._stack.close)  # a stage out of time does not get to its last case

    def start(self) -> Facts:
        """Seconds until the service is ready, and its memory then. Raises Skipped if a library is missing."""
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise Skipped(f"not installed: {', '.join(missing)}")
        self._folder = Path(self._stack.enter_context(TemporaryDirectory()))
        context = get_context("spawn")
        self._pool = self._stack.enter_context(ProcessPoolExecutor(SENDERS, context))
        self._manager = self._stack.enter_context(context.Manager())
        self._started = time.time()
        return self._start(range(1))

    def start_others(self, more: int) -> Facts:
        """Seconds until `more` others are ready, which start together, and the memory of all."""
        running = len(self._running)
        return self._start(range(running, running + more))

    def measure(self, load: Load, clients: int) -> Facts:
        """Answers, latencies, processors in use, and the means of the service's own histograms meanwhile."""
        before, senders, services = self._scrape(), min(SENDERS, clients), self._running
        together = self._manager.Barrier(senders, timeout=30.0)
        shares = [len(range(first, clients, senders)) for first in range(senders)]
        sent = [
            self._pool.submit(send, service, load, self._window, together, next(self._seeds), share)
            for service, share in zip(cycle(services), shares)
        ]
        outcomes, busy = zip(*(one.result() for one in sent), strict=True)
        summary = summarise([*chain(*outcomes)], self._window, busy[0])
        assert summary.admitted is not None, f"nothing that was asked in the window was answered: {summary.counts}"
        observed = means(before, self._scrape())
        return {
            "answers/s": summary.goodput,
            "ms p50": summary.admitted.p50,
            "ms p99": summary.admitted.p99,
            "requests in a batch": observed["batch_tasks"],
            "processors in use": sum(each.service for each in busy[: len(services)]),
            "of the busiest sender": max(one.generator for one in busy),
            "not answered in time": float(summary.unexpected),
            "means": observed,
        }

    def _start(self, numbers: range) -> Facts:
        # Nobody is refused, as clients wait as long as it takes. A dry run is spared the choice of a dtype.
        settings = {"DEVICE": self._lab.device.type, "PATIENCE": "1000", "LOG_LEVEL": "info", "LOG_FORMAT": "json"}
        settings["DTYPE"] = "float32" if self._lab.dry else "auto"
        started, logs = time.time(), [self._folder / f"{number}.log" for number in numbers]
        with ThreadPoolExecutor(len(logs)) as threads:
            services = [threads.submit(self._stack.enter_context, running_service(settings, log)) for log in logs]
        self._services += [each.result() for each in services]
        return {"s until ready": time.time() - started, **self._state()}

    def end(self) -> Facts:
        """The memory after all loads; then stops the services."""
        state = self._state()
        self._stack.close()
        return state

    @property
    def _running(self) -> list[Service]:
        if not self._services:
            raise Skipped("the service is not running")
        return self._services

    def _scrape(self) -> Mapping[str, float]:
        """The sums of the services' metrics."""
        sums: defaultdict[str, float] = defaultdict(float)
        for service in self._running:
            for line in service.get("/metrics")[1].splitlines():
                if line[0] != "#":
                    name, _, value = line.rpartition(" ")
                    sums[name.removeprefix("bandrank_")] += float(value)
        return sums

    def _state(self) -> Facts:
        metrics, pids = self._scrape(), [each.pid for each in self._running if each.pid is not None]
        return {
            "MiB of processes at their peak": sum(Memory.of(pid).peak for pid in pids),
            "of tensors on the card": metrics['device_memory_bytes{kind="peak"}'] / MIB,
            "of graphs": metrics['device_memory_bytes{kind="graphs"}'] / MIB,
            "log": timeline((self._folder / "0.log").read_text(), self._started),  # of the first
        }


def send(  # noqa: PLR0917  # called in another process
    service: Service, load: Load, window: Window, together: Barrier, seed: int, clients: int
) -> tuple[list[Outcome], Busy]:
    """The outcomes of clients in a closed loop, which begins once all processes have made their requests."""
    stream = requests(
        seed=seed,
        numbers=count(FIRST_NUMBER + seed * NUMBERS),
        candidates=(load.candidates,),
        fields={"strategy": load.strategy},
        texts=passages(load.candidates, count(FIRST_NUMBER), random.Random(0)) if load.cached else (),
    )
    ahead = [*islice(stream, round(AHEAD * window.to_s))]
    together.wait()
    return asyncio.run(closed_loop(service, chain(ahead, stream), window, 10.0, connections=clients))


def means(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The means of what histograms observed between two scrapes."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {
        name.replace("_sum", "", 1): total / number
        for name, total in grown.items()
        if "_sum" in name and (number := grown[name.replace("_sum", "_count", 1)])
    }


def timeline(log: str, started: float) -> dict[str, tuple[float, float, int]]:
    """For each message of a log in JSON: seconds from `started` until it came first and last, and how often it came."""
    times: dict[str, list[float]] = {}
    for line in log.splitlines():
        if line.startswith("{"):
            record = json.loads(line)
            at = datetime.fromisoformat(record["time"]).timestamp() - started
            times.setdefault(record["message"], []).append(round(at, 2))
    return {message: (every[0], every[-1], len(every)) for message, every in times.items()}
