"""Stages of named cases, run in order. Every case leaves one record, however it ends.

A record is a line of JSON, written at once, so that a run cut short leaves the records of all finished cases.
"""

import gzip
import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from bandrank_bench.gpu.lab import Lab, Skipped
from bandrank_bench.output import json_line

Facts = dict[str, Any]
Status = Literal["ok", "failed", "skipped", "cut"]


@dataclass(frozen=True)
class Record:
    """One case of one stage.

    status: "skipped" if something it needs is not installed, "cut" if its stage ran out of time.
    facts: its measurements, its error and traceback, or the reason why it was skipped.
    """

    stage: str
    case: str
    status: Status
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """A file of records, to which the processes of a run append by turns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, record: Record) -> None:
        """Appends a line in one write, because the writer may be killed, and others read meanwhile."""
        with self.path.open("ab", buffering=0) as file:
            file.write(json_line(asdict(record)).encode())

    def read(self) -> list[Record]:
        """All records so far; none if there is no file. An incomplete line is ignored."""
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        if self.path.suffix == ".gz":
            content = gzip.decompress(content)
        *lines, _ = content.decode().split("\n")
        return [Record(**json.loads(line)) for line in lines]

    def of(self, stage: str) -> list[Record]:
        """The records of a stage, one for each finished case."""
        return [record for record in self.read() if record.stage == stage]


@dataclass(frozen=True)
class Case:
    """One measurement or check. run: returns the facts; raises Skipped, or any other exception for a failure."""

    name: str
    run: Callable[[], Facts]


@dataclass(frozen=True)
class Stage:
    """A part of the check, run in a separate process.

    module: has a function `listing(lab)` that lists the cases; it is cheap, and returns the same list each time.
    share_s: seconds in a run of all stages within ten minutes; a run of some stages has more for each, and unused time
    goes to the later ones.  case_s: seconds after which a case counts as hung and is abandoned.
    gate: a failure fails the whole run.  needed: if cases fail and none succeeds, no later stage can, and the run ends.
    """

    name: str
    module: str
    share_s: float
    gate: bool = False
    listing: str = "cases"
    case_s: float = 30.0
    needed: bool = False

    def cases(self, lab: Lab) -> list[Case]:
        """Lists the cases. Imports the module only here, so that a library that it lacks does not stop other stages."""
        return list(getattr(import_module(self.module), self.listing)(lab))


# Correctness, then our speed, then the rest: a run that is cut short has what matters most.
STAGES = (
    Stage("machine", "bandrank_bench.gpu.machine", 10, case_s=60),
    Stage("compile", "bandrank_bench.gpu.machine", 30, gate=True, listing="compilations", case_s=60, needed=True),
    Stage("tests", "bandrank_bench.gpu.watched", 100, gate=True, listing="tests", case_s=120),
    Stage("parity", "bandrank_bench.gpu.parity", 15, gate=True),
    Stage("operation", "bandrank_bench.gpu.operations", 20),
    Stage("model", "bandrank_bench.gpu.whole_model", 40),
    Stage("cached", "bandrank_bench.gpu.cached", 15),
    Stage("host", "bandrank_bench.gpu.host", 15),
    Stage("launches", "bandrank_bench.gpu.launches", 20),
    Stage("service", "bandrank_bench.gpu.service", 125, case_s=100),
    Stage("sanitizer", "bandrank_bench.gpu.watched", 40, gate=True, listing="sanitizers", case_s=75),
    Stage("sweep", "bandrank_bench.gpu.sweep", 30),
    Stage("baselines", "bandrank_bench.gpu.operations", 50, listing="baselines", case_s=45),
    Stage("peers", "bandrank_bench.gpu.whole_model", 40, listing="peers", case_s=45),
    Stage("profile", "bandrank_bench.gpu.watched", 35, listing="profiles", case_s=75),
)


def run_stage(stage: Stage, lab: Lab, journal: Journal, *, cap_s: float, first: int = 0) -> bool:
    """Runs the cases from number `first` on. Returns False if this process can no longer use the GPU."""
    deadline = time.monotonic() + cap_s
    record = run_case(stage.name, Case("cases", lambda: {"cases": stage.cases(lab)}))
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
        try:
            lab.tidy()
        except RuntimeError:  # before torch 2.12, impossible after a failed capture
            return False
    return True


def run_case(stage: str, case: Case) -> Record:
    """Runs a case and returns its record; never raises."""
    started = time.monotonic()
    status: Status = "ok"
    try:
        facts = case.run()
    except Skipped as reason:
        status, facts = "skipped", {"reason": str(reason)}
    except Exception as error:  # noqa: BLE001  # a failure on a GPU is a result, and other cases follow
        status, facts = "failed", {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return Record(stage, case.name, status, round(time.monotonic() - started, 3), facts)
