"""A polite client beside an attack, which records its answers, its latencies, probes, and the service's memory."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.server import RunningService

TESTS = Path(__file__).resolve().parents[1]


@dataclass
class Testimony:
    """What the witness saw. latencies_s, probes_s: how long its requests and probes took.  wrong: its wrong answers."""

    latencies_s: list[float] = field(default_factory=list)
    probes_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    most_memory: int = 0

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the latencies of its requests."""
        if len(self.latencies_s) < 2:
            return max(self.latencies_s, default=0.0)
        return statistics.quantiles(self.latencies_s, n=100, method="inclusive")[-1]


@dataclass(frozen=True)
class Witness:
    """A polite client in a process of its own, so that an attack that keeps this process busy delays no measurement."""

    service: RunningService
    process: subprocess.Popen[str]

    @contextmanager
    def watching(self) -> Iterator[Testimony]:
        """Asks small requests and probes until the block ends, after which the testimony is filled in."""
        testimony = Testimony()
        assert self._answer() == "begun\n"
        try:
            yield testimony
        finally:
            vars(testimony).update(json.loads(self._answer()))

    def _answer(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return self.process.stdout.readline()


@contextmanager
def witness_of(service: RunningService, *, asking: str = "service") -> Iterator[Witness]:
    """Starts a witness of a service. asking: "service" if it asks for rankings, "proxy" if it searches /docs."""
    command = [sys.executable, "-m", "support.witnessing", service.url, str(service.process.pid), asking]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(TESTS)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield Witness(service, process)
