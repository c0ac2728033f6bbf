"""Runs a stage in separate processes until all its cases are over: a process that hangs is killed; a case that kills
its process, or makes the card unusable to it, costs only itself, and the next process continues behind that case.

Such a process is `python -m bandrank_bench.gpu.supervise STAGE FIRST CAP_S FILE`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.stages import STAGES, Journal, Record, Stage, run_stage

DEVICE_LOST = 3  # exit code of a process that has written down its failure and cannot continue
MOST_PROCESSES = 6
GRACE_S = 10.0  # for the case that runs when the stage's time is over

Command = Callable[[Stage, int, float], list[str]]  # the stage, its first case, seconds


def child(journal: Journal) -> Command:
    """The process in which stages run."""
    module = [sys.executable, "-m", "bandrank_bench.gpu.supervise"]
    return lambda stage, first, cap_s: [*module, stage.name, str(first), f"{cap_s:.0f}", str(journal.path)]


def supervise(stage: Stage, journal: Journal, command: Command, *, cap_s: float, grace_s: float = GRACE_S) -> None:
    """Every case that was started has its record afterwards."""
    deadline = time.monotonic() + cap_s
    for _ in range(MOST_PROCESSES):
        left = max(0.0, deadline - time.monotonic())
        code = _run(command(stage, journal.count(stage.name), left), left + grace_s)
        if code == 0:
            return
        if code is None:
            journal.write(Record(stage.name, "killed", "failed", facts={"error": f"ran on after its {cap_s:.0f} s"}))
            return
        if code != DEVICE_LOST:
            journal.write(Record(stage.name, "crashed", "failed", facts={"error": f"the process ended with {code}"}))
    journal.write(Record(stage.name, "the rest", "cut", facts={"reason": f"{MOST_PROCESSES} processes came to grief"}))


def _run(command: list[str], cap_s: float) -> int | None:
    """The exit code; None if it had to be killed, with all that it had started."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(cap_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):  # nothing is left of it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    name, first, cap_s, path = sys.argv[1:]
    chosen = next(stage for stage in STAGES if stage.name == name)
    usable = run_stage(chosen, Lab(dry=False), Journal(Path(path)), cap_s=float(cap_s), first=int(first))
    sys.exit(0 if usable else DEVICE_LOST)
