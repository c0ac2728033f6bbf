"""Stage 6: what the hardware counters say of three launches, one row of facts each."""

import csv
from collections.abc import Iterator
from functools import partial

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.launches import PROFILED
from bandrank_bench.gpu.stage import Case, Facts
from bandrank_bench.gpu.tools import TAIL, on_launches

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "Occupancy", "LaunchStats")
OPTIONS = (
    "--clock-control",
    "none",
    *(word for section in SECTIONS for word in ("--section", section)),
    "--metrics",
    "dram__bytes.sum,lts__t_bytes.sum",
    "--kernel-name",
    "regex:(narrow|wide)_forward",
    "--csv",
    "--page",
    "details",
)
CAP_S = 40.0


def cases(lab: Lab) -> Iterator[Case]:
    """Each launch in a process of its own."""
    for name in PROFILED:
        yield Case(name, partial(profile, lab, name))


def profile(lab: Lab, launch: str) -> Facts:
    """Metric to value with unit. Raises RuntimeError if ncu shows none."""
    lab.require_gpu()
    said = on_launches("ncu", OPTIONS, [launch], cap_s=CAP_S)
    metrics = read(said)
    if not metrics:
        raise RuntimeError(f"ncu shows no metric: {said[-TAIL:]}")
    return metrics


def read(said: str) -> Facts:
    """The metrics in ncu's words, which precede its table of comma-separated values."""
    lines = said.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    table = csv.DictReader(lines[start:])
    return {
        row["Metric Name"]: f"{row['Metric Value']} {row['Metric Unit']}".strip()
        for row in table
        if row.get("Metric Name") and row.get("Metric Value")
    }
