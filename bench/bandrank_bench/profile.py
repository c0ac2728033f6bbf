"""Where the time of a request goes, by operator, on a CPU: docs/benchmarks-profile.md.

Run as `python -m bandrank_bench profile`; needs Linux's `perf` (Debian: linux-perf) and permission to use it. The
engine runs in this process, on one new request after the other, while perf samples each processor 499 times a second.
"""

import argparse
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

from bandrank.dtypes import DtypeName
from bandrank_bench import machine
from bandrank_bench.checkpoint import write_patterns
from bandrank_bench.ours import load
from bandrank_bench.output import bullets, say, table, write_page
from bandrank_bench.systems import Score
from bandrank_bench.workloads import WORKLOADS, Request, Writer, load_tokenizer

HERTZ = 499
OTHER = "other"
# A sample belongs to the first operator whose pattern matches "LIBRARY SYMBOL".
OPERATORS = {
    "attention": r"attend|attention|softmax|SequenceLayer|bandrank::weigh\b",
    "products of matrices": r"gemm|mkl_|mkldnn|dnnl|multiply|jit|anon|perf-\d+\.map",  # oneDNN's JIT code has no names
    "normalising, activating, making int8": r"norm|gelu|quantise|\berf",
    "copies": r"memmove|memcpy|memset|copy|index_select|embedding",
    "tokenising": r"tokenizers",
    "Python": r"python",
    "waiting for threads": r"omp",
    "the operating system": r"\[kernel",
}


@dataclass(frozen=True)
class Profile:
    """The profile of one system and workload. wall_ms: the median of a request.  cpu_ms: of a request on all
    processors, by operator.
    """

    workload: str
    system: str
    wall_ms: float
    cpu_ms: dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Profiles, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=["W0", "W1", "W3"])
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="how long to profile each system and workload (default: 6)"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks-profile.md"))
    options = parser.parse_args(arguments)
    if shutil.which("perf") is None:
        raise SystemExit("perf is not installed: apt-get install linux-perf")
    with tempfile.TemporaryDirectory(prefix="bandrank-bench-") as folder:
        profiles = list(_profiles(Path(folder), options.workloads, options.seconds))
    write_page(options.out, markdown(profiles, machine.describe()))
    return 0


def _profiles(work: Path, workloads: Sequence[str], seconds: float) -> Iterator[Profile]:
    for pattern, checkpoint in write_patterns(work).items():
        writer = Writer(load_tokenizer(checkpoint))
        dtypes: tuple[DtypeName, ...] = ("float32", "int8")
        for dtype in dtypes:
            with load(checkpoint, dtype) as score:
                for name in workloads:
                    say(f"{name}: {pattern} {dtype}")
                    requests = (WORKLOADS[name].request(writer, 9000 + number) for number in range(10**6))
                    yield profile(name, f"{pattern} {dtype}", score, requests, seconds)


def profile(workload: str, system: str, score: Score, requests: Iterator[Request], seconds: float) -> Profile:
    """Profiles requests one after the other for `seconds`, after two to warm up."""
    slowest = max(_timed(score, next(requests)) for _ in range(2))
    ready = list(islice(requests, 1 + math.ceil(2 * seconds / slowest)))  # written outside the profile
    wall: list[float] = []
    with recorded() as samples:
        cpu_s, end = time.process_time(), time.perf_counter() + seconds
        while time.perf_counter() < end and len(wall) < len(ready):
            wall.append(_timed(score, ready[len(wall)]))
        cpu_s = time.process_time() - cpu_s
    counted = by_operator(samples)
    each_ms = 1e3 * cpu_s / len(wall) / counted.total()
    return Profile(workload, system, 1e3 * median(wall), {name: each_ms * count for name, count in counted.items()})


def _timed(score: Score, request: Request) -> float:
    started = time.perf_counter()
    score(request.query, request.passages)
    return time.perf_counter() - started


@contextmanager
def recorded() -> Iterator[list[tuple[str, str]]]:
    """Samples this process; when the context ends, the list has the library and the symbol of every sample.

    Raises RuntimeError with perf's message if it cannot record.
    """
    found: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="bandrank-bench-") as folder:
        file = Path(folder) / "perf.data"
        command = ["perf", "record", "-q", "-F", str(HERTZ), "-p", str(os.getpid()), "-o", str(file)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as perf:
            time.sleep(0.5)  # until it records
            try:
                yield found
            finally:
                perf.send_signal(signal.SIGINT)
                _, said = perf.communicate()
        if not file.exists():
            raise RuntimeError(f"perf recorded nothing: {said.strip()}")
        script = ["perf", "script", "-i", str(file), "-F", "ip,sym,dso"]
        lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
        found += map(_library_and_symbol, lines)


def _library_and_symbol(line: str) -> tuple[str, str]:
    """Parses "ADDRESS SYMBOL (PATH)"."""
    _, _, rest = line.strip().partition(" ")
    symbol, _, path = rest.rpartition(" (")
    return path.rstrip(")").rsplit("/", 1)[-1], symbol


def by_operator(found: Iterable[tuple[str, str]]) -> Counter[str]:
    """Counts the samples of each operator. found: libraries and symbols."""
    return Counter(_operator(f"{library} {symbol}") for library, symbol in found)


def _operator(place: str) -> str:
    return next((name for name, pattern in OPERATORS.items() if re.search(pattern, place, re.IGNORECASE)), OTHER)


def markdown(profiles: Sequence[Profile], facts: dict[str, str]) -> str:
    """The page."""
    blocks = [
        "# Where the time of a request goes",
        "What the processors do during a request: milliseconds of processor time by operator, as `perf` sees the "
        f"process {HERTZ} times a second. The engine runs in process, one request after the other.\n\n"
        "Float32 is computed by matrix products of MKL and oneDNN through torch, with a pass over memory for each step "
        "between them; int8 by bandrank's CPU kernels. There, scales, bias, GELU and the residual count as products, "
        "because they are computed beside them. What is missing from the wall time of each processor is time in which "
        "it waited.\n\n"
        "Written by `python -m bandrank_bench profile`.",
        bullets(facts),
    ]
    for workload in dict.fromkeys(one.workload for one in profiles):
        those = [one for one in profiles if one.workload == workload]
        rows = [["wall time", *(f"{one.wall_ms:,.1f}" for one in those)]]
        rows += [["all processors", *(f"{sum(one.cpu_ms.values()):,.1f}" for one in those)]]
        rows += [[name, *(_share(one, name) for one in those)] for name in (*OPERATORS, OTHER)]
        blocks += [f"## {workload}: {WORKLOADS[workload].title}", table(["", *(one.system for one in those)], rows)]
    return "\n\n".join(blocks) + "\n"


def _share(one: Profile, operator: str) -> str:
    spent = one.cpu_ms.get(operator, 0.0)
    return f"{spent:,.1f} ({spent / sum(one.cpu_ms.values()):.0%})"
