"""The measurements of one family, kept as a line of JSON so that the page can be rewritten without measuring."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn, Self

from bandrank_bench.calibrate import Sample
from bandrank_bench.cpu.agreement import Agreement
from bandrank_bench.cpu.summary import Row, summarise
from bandrank_bench.families.memory import Growth, Point
from bandrank_bench.output import json_line, read_samples
from bandrank_bench.systems import System


@dataclass(frozen=True)
class FamilyResults:
    """The measurements of one run.

    around: tokens of a pair besides its two texts.  systems: name, precision and kind of each.  samples: all, clean or
    not.  calm_s: seconds of the calibration product on a calm machine.  left_out: systems that could not be measured,
    each with the reason.
    """

    family: str
    machine: Mapping[str, str]
    around: int = 0
    systems: Sequence[Sequence[str]] = ()
    calm_s: float = 0.0
    samples: Sequence[Sample] = ()
    agreements: Sequence[Agreement] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    memory: Sequence[Growth] = ()

    @property
    def tables(self) -> dict[str, list[Row]]:
        """The rows of each timed workload."""
        systems = [System(name, precision, "full", kind, _gone) for name, precision, kind in self.systems]  # type: ignore[arg-type]
        return {
            workload: summarise([one for one in self.samples if one.workload == workload], systems, self.calm_s)
            for workload in dict.fromkeys(sample.workload for sample in self.samples)
        }

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The inverse of `to_json`."""
        fields = json.loads(line)
        fields["samples"] = [Sample(**sample) for sample in fields["samples"]]
        fields["agreements"] = [Agreement(**agreement) for agreement in fields["agreements"]]
        fields["memory"] = [
            Growth(**growth | {"points": [Point(**point) for point in growth["points"]]}) for growth in fields["memory"]
        ]
        return cls(**fields)

    def to_json(self) -> str:
        """All fields, as one line of JSON."""
        return json_line(asdict(self))


def read(page: Path) -> dict[str, FamilyResults]:
    """Earlier runs' results, by family, from the samples beside a page; empty if there are none."""
    return {results.family: results for results in map(FamilyResults.from_json, read_samples(page))}


def _gone(*_: object) -> NoReturn:
    raise AssertionError("a system whose model is gone was asked to score. This is a bug.")
