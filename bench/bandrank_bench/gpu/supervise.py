"""Runs a stage in separate processes until all its cases are done. If a case hangs, kills its process or makes the card
unusable to it, only that case is lost: a new process continues after it.

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

DEVICE_LOST = 3  # exit code of a process that has recorded its failure and cannot continue
MOST_PROCESSES = 6
GRACE_S = 10.0  # for the case that runs when the stage's time is up
POLL_S = 0.5

Command = Callable[[Stage, int, float], list[str]]  # the stage, its first case, seconds


def child(journal: Journal) -> Command:
    """Returns the command of a process that runs a stage."""
    module = [sys.executable, "-m", "bandrank_bench.gpu.supervise"]
    return lambda stage, first, cap_s: [*module, stage.name, str(first), f"{cap_s:.0f}", str(journal.path)]


def supervise(stage: Stage, journal: Journal, command: Command, *, cap_s: float, grace_s: float = GRACE_S) -> None:
    """Runs a stage; afterwards, every case that was started has its record."""
    deadline = time.monotonic() + cap_s
    for _ in range(MOST_PROCESSES):
        left = max(0.0, deadline - time.monotonic())
        done = len(journal.of(stage.name))
        code = _run(command(stage, done, left), left + grace_s, lambda: len(journal.of(stage.name)), stage.case_s)
        if code == 0:
            return
        if code is None and time.monotonic() >= deadline:
            journal.write(Record(stage.name, "killed", "failed", facts={"error": f"ran on after its {cap_s:.0f} s"}))
            return
        if code is None:
            journal.write(Record(stage.name, "hung", "failed", facts={"error": f"no end in {stage.case_s:.0f} s"}))
        elif code != DEVICE_LOST:
            journal.write(Record(stage.name, "crashed", "failed", facts={"error": f"the process ended with {code}"}))
    journal.write(Record(stage.name, "the rest", "cut", facts={"reason": f"{MOST_PROCESSES} processes came to grief"}))


def _run(command: list[str], cap_s: float, progress: Callable[[], int], patience_s: float) -> int | None:
    """Runs a process and returns its exit code. Kills it with its children and returns None if it takes longer than
    `cap_s`, or makes no progress for `patience_s`.
    """
    process = subprocess.Popen(command, start_new_session=True)
    end, seen = time.monotonic() + cap_s, progress()
    due = time.monotonic() + patience_s
    try:
        while (now := time.monotonic()) < min(end, due):
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(POLL_S, end - now, due - now))
            if (reached := progress()) != seen:
                seen, due = reached, time.monotonic() + patience_s
        return None
    finally:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a driver may hold it: the run goes on without it
            process.wait(GRACE_S)


if __name__ == "__main__":
    name, first, cap_s, path = sys.argv[1:]
    chosen = next(stage for stage in STAGES if stage.name == name)
    usable = run_stage(chosen, Lab(dry=False), Journal(Path(path)), cap_s=float(cap_s), first=int(first))
    sys.exit(0 if usable else DEVICE_LOST)
