"""A polite client beside an attack: its answers, its waiting, probes, and the memory of the service meanwhile."""

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
    """What the witness saw. latencies_s, probes_s: of its requests and probes.  wrong: answers that are not right."""

    latencies_s: list[float] = field(default_factory=list)
    probes_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    most_memory: int = 0

    @property
    def p99_s(self) -> float:
        """Of its requests."""
        if len(self.latencies_s) < 2:
            return max(self.latencies_s, default=0.0)
        return statistics.quantiles(self.latencies_s, n=100, method="inclusive")[-1]


@contextmanager
def witness(service: RunningService, *, of: str = "service") -> Iterator[Testimony]:
    """Asks small requests and probes until the block ends, after which the testimony is filled in.

    of: "service", or "proxy" to ask one for a search of "/docs".
    The client is a process of its own, so that an attack that keeps this one busy delays none of its measurements.
    """
    testimony = Testimony()
    command = [sys.executable, "-m", "support.witnessing", service.url, str(service.process.pid), of]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(TESTS)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield testimony
        seen, _ = process.communicate()
    vars(testimony).update(json.loads(seen))
