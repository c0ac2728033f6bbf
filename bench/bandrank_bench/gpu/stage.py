"""A stage: named cases, tried in order, each of which leaves one record whatever becomes of it."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.records import Journal, Record, Skipped, Status

Facts = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Something to try. run: returns what it measured; raises Skipped, or anything else for a failure."""

    name: str
    run: Callable[[], Facts]


@dataclass(frozen=True)
class Stage:
    """A part of the check, run in a process of its own.

    module: whose `cases(lab)` lists its cases: cheap, and the same each time.  gate: a failure fails the whole run.
    """

    name: str
    module: str
    cap_s: float
    gate: bool = False

    def cases(self, lab: Lab) -> list[Case]:
        """Imported here, so that what one stage lacks does not stop the others."""
        return list(import_module(self.module).cases(lab))


STAGES = (
    Stage("machine", "bandrank_bench.gpu.machine", 30),
    Stage("compile", "bandrank_bench.gpu.compiling", 75, gate=True),
    Stage("exactness", "bandrank_bench.gpu.exactness", 80, gate=True),
    Stage("streams", "bandrank_bench.gpu.streams", 30, gate=True),
    Stage("sanitizer", "bandrank_bench.gpu.sanitizing", 110, gate=True),
    Stage("operation", "bandrank_bench.gpu.operations", 140),
    Stage("model", "bandrank_bench.gpu.whole_model", 100),
    Stage("profile", "bandrank_bench.gpu.profiling", 60),
)


def run_stage(stage: Stage, lab: Lab, journal: Journal, *, cap_s: float, first: int = 0) -> bool:
    """Runs the cases from number `first` on. Returns False if the GPU can no longer be used by this process."""
    deadline = time.monotonic() + cap_s
    listed = Case("cases", lambda: {"cases": stage.cases(lab)})
    record = run_case(stage.name, listed)
    if record.status != "ok":
        journal.write(record)
        return True
    for case in record.facts["cases"][first:]:
        if time.monotonic() > deadline:
            journal.write(Record(stage.name, case.name, "cut", facts={"reason": f"the stage had {cap_s:.0f} s"}))
            break
        record = run_case(stage.name, case)
        journal.write(record)
        if record.status == "failed" and not lab.is_alive():
            return False
        lab.tidy()
    return True


def run_case(stage: str, case: Case) -> Record:
    """Never raises."""
    begun = time.monotonic()
    status: Status = "ok"
    try:
        facts = case.run()
    except Skipped as reason:
        status, facts = "skipped", {"reason": str(reason)}
    except Exception as error:  # noqa: BLE001  # whatever a first run on a GPU brings is a result, and others follow
        status, facts = "failed", {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return Record(stage, case.name, status, round(time.monotonic() - begun, 3), facts)
