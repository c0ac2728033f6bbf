"""What a run found: one JSON line a case, written at once, so that a run cut short leaves what was done."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "failed", "skipped", "cut"]


class Skipped(Exception):
    """What a case needs is not there; the message says what."""


@dataclass(frozen=True)
class Record:
    """One case of one stage.

    status: "skipped" if something it needs is not installed, "cut" if the time of its stage was over.
    facts: what it measured; an error and its traceback; why it was skipped.
    """

    stage: str
    case: str
    status: Status
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """A file of records, which the processes of a run append to in turn."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, record: Record) -> None:
        """Adds a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record), default=str) + "\n")

    def read(self) -> list[Record]:
        """All records so far; none if there is no file."""
        if not self.path.exists():
            return []
        return [Record(**json.loads(line)) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def count(self, stage: str) -> int:
        """Cases of a stage that are over."""
        return sum(record.stage == stage for record in self.read())
