"""Runs tools on our kernels: compute-sanitizer and Nsight Compute, which watch a small program that launches them
(`python -m bandrank_bench.gpu.watched NAME ...`), and pytest. Each may be missing.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import torch

from bandrank_bench.gpu.lab import Lab, Skipped
from bandrank_bench.gpu.parts import attention, head, last_layer, norms
from bandrank_bench.gpu.shape import Shape
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_kernels import choose_backend
from bandrank_kernels.band_products import band_pv, band_qk

FOLDERS = ("/usr/local/cuda/bin", *map(str, sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)))
TAIL = 4000  # characters of a program's output to keep
ROOT = Path(__file__).resolve().parents[3]

SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
CAP_S = 100.0  # for each program; ten files of tests at once took 60 s on the slowest host so far
ANSWER_CAP_S = 10.0  # for nvidia-smi
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "Occupancy", "LaunchStats")
PROFILE_OPTIONS = (
    *("--clock-control", "none"),
    *(word for section in SECTIONS for word in ("--section", section)),
    *("--metrics", "dram__bytes.sum,lts__t_bytes.sum"),
    *("--kernel-name", "regex:(narrow|wide)_forward"),
    *("--csv", "--page", "details"),
)

# Few candidates, but more than one tile each.
SMALL = {f"w={window}": Shape(70, window, 32, num_heads=2, num_candidates=3, query_tokens=5) for window in (4, 20)}
PROFILED = {
    str(shape): shape for shape in (Shape(164, 4, 32), Shape(164, 64, 32), Shape(4086, 64, 32), Shape(4086, 64, 64))
}


def launch(lab: Lab, name: str) -> None:
    """Launches by name: one forward for a name in PROFILED, all kernels on small inputs for one in SMALL."""
    small, shape = name in SMALL, {**SMALL, **PROFILED}[name]
    part = attention(lab, shape)
    (qkv,) = part.draw(0)
    (out,) = part.prepare(lab.backend)(qkv.requires_grad_(small))
    if small:
        torch.autograd.grad(out, qkv, torch.ones_like(out))
        query, key = (lab.randn(2, 70, 32, seed=seed) for seed in (0, 1))
        band = band_qk(query, key, shape.window, backend=lab.backend)
        band_pv(band, key, backend=lab.backend)
        for other in (last_layer(lab, replace(shape, tokens=300)), norms(lab, 70, 264), head(lab, 70, 96)):
            other.prepare(lab.backend)(*other.draw(0))
    lab.synchronize()


def sanitizers(lab: Lab) -> Iterator[Case]:
    """A case per tool, on all small launches: tools see races and stray accesses that comparisons cannot."""
    return side_by_side(SANITIZERS, partial(sanitized, lab))


def sanitized(lab: Lab, tool: str) -> Facts:
    """Runs a sanitizer. Raises RuntimeError if it reports anything, or does not report that it found nothing."""
    lab.require_gpu()
    options = ["--tool", tool, "--error-exitcode", "9"]
    if tool == "memcheck":
        options += ["--report-api-errors", "no"]  # torch probes CUDA for optional functions
    said = on_launches("compute-sanitizer", options, [*SMALL])
    summaries = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", said)
    if not summaries or any(int(count) for count in summaries):
        raise RuntimeError(f"{tool} does not say that all is well: {said[-TAIL:]}")
    return {"errors": 0}


def profiles(lab: Lab) -> Iterator[Case]:
    """Cases for the hardware counters of three launches, each in a separate process."""
    for name in PROFILED:
        yield Case(name, partial(profile, lab, name))


def profile(lab: Lab, name: str) -> Facts:
    """Profiles a launch; returns values with units, by metric. Raises RuntimeError if ncu shows none."""
    lab.require_gpu()
    said = on_launches("ncu", PROFILE_OPTIONS, [name])
    lines = said.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    metrics = {
        row["Metric Name"]: f"{row['Metric Value']} {row['Metric Unit']}".strip()
        for row in csv.DictReader(lines[start:])
        if row.get("Metric Name") and row.get("Metric Value")
    }
    if not metrics:
        raise RuntimeError(f"ncu shows no metric: {said[-TAIL:]}")
    return metrics


def tests(lab: Lab) -> Iterator[Case]:
    """The tests that need a GPU, which compare every kernel with float64; each file in a separate process, all side by
    side, because most of their time is the host's.
    """
    paths = {path.stem: path for path in sorted(ROOT.glob("tests/*/test_*_on_gpu.py"))}
    return side_by_side([*paths], lambda name: tested(lab, paths[name]))


def side_by_side(names: Sequence[str], run: Callable[[str], Facts]) -> Iterator[Case]:
    """A case for each name. The first case starts all of them at once."""
    pool = ThreadPoolExecutor(max(1, len(names)))

    @cache
    def started() -> dict[str, Future[Facts]]:
        return {name: pool.submit(run, name) for name in names}

    for name in names:
        yield Case(name, partial(lambda name: started()[name].result(), name))


def tested(lab: Lab, path: Path) -> Facts:
    """Runs pytest; returns its summary. Raises Skipped without pytest, RuntimeError if a test fails or none ran."""
    lab.require_gpu()
    if find_spec("pytest") is None:
        raise Skipped("pytest is not installed")
    # Warnings do not matter here, and the tests' set-up needs programs that a GPU machine may lack.
    options = ["-q", "--noconftest", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    said = run([sys.executable, "-m", "pytest", *options, "--rootdir", str(ROOT), str(path)])
    summaries = re.findall(r"^.*\d+ passed.*$", said, re.MULTILINE)  # libraries may print after it
    if not summaries:
        raise RuntimeError(f"no test ran: {said[-TAIL:]}")
    return {"tests": summaries[-1]}


def find(tool: str) -> str | None:
    """Finds a tool on PATH or in the toolkit's folders; returns its path."""
    return shutil.which(tool) or shutil.which(tool, path=os.pathsep.join(FOLDERS))


def on_launches(tool: str, options: Sequence[str], launches: Sequence[str]) -> str:
    """Runs a tool on these launches; returns its output. Raises Skipped without the tool, and the errors of `run`."""
    path = find(tool)
    if path is None:
        raise Skipped(f"{tool} is not installed")
    # Each tensor gets its own allocation, so that tools see accesses beyond its end.
    command = [path, *options, sys.executable, "-m", "bandrank_bench.gpu.watched", *launches]
    return run(command, PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def run(command: Sequence[str], **environment: str) -> str:
    """Runs a program; returns its output. Raises RuntimeError with its end if it fails or takes longer than `CAP_S`."""
    # The output goes to a file: reading a pipe would wait as long as any child of the program held it.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            process = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                timeout=CAP_S,
                check=False,
            )
            problem = f"ended with {process.returncode}" if process.returncode else None
        except subprocess.TimeoutExpired:
            problem = f"took longer than {CAP_S:.0f} s"
        output.seek(0)
        said = output.read()
    if problem:
        raise RuntimeError(f"{Path(command[0]).name} {problem}: {said[-TAIL:]}")
    return said


def ask_card(*fields: str) -> Facts:
    """Asks nvidia-smi for fields of the first card; empty without a card or an answer."""
    path = find("nvidia-smi")
    if path is None:
        return {}
    command = [path, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_CAP_S, check=False).stdout
    except subprocess.TimeoutExpired:
        return {}
    return dict(zip(fields, (value.strip() for value in answer.strip().split(",")), strict=False))


def card_name() -> str:
    """The card's name for use in a file name, such as "nvidia-h100-80gb-hbm3"."""
    name = str(ask_card("name").get("name", "")) or "no-card"
    return "-".join("".join(char if char.isalnum() else " " for char in name.lower()).split())


def main(names: Sequence[str], lab: Lab) -> None:
    """Makes the named launches. Raises BackendUnavailable rather than let another backend run."""
    choose_backend(lab.backend, lab.device)
    for name in names:
        launch(lab, name)


if __name__ == "__main__":
    main(sys.argv[1:], Lab(dry=False))
