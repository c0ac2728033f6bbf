"""The results page: a description of the files, and for each goal the newest value.

python -m bandrank_bench.gpu.report kernels/results
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from bandrank_bench.gpu.goals import GOALS, Measurements
from bandrank_bench.gpu.predictions import CARDS
from bandrank_bench.gpu.stages import STAGES, Journal, Record
from bandrank_bench.output import table

PAGE = """# Results of the kernels

Written by `python -m bandrank_bench.gpu.report kernels/results`, as `make gpu-check` does at its end.

## Files

- `registers.json`: registers and spilled bytes of every kernel on sm_75, 80, 86, 89, 90, 100 and 120, assembled without
  a GPU (`python -m bandrank_bench registers`). A number is registers; a pair is registers and spilled bytes.
- `<date>-<card>.jsonl`, or compressed `.jsonl.gz`: a run of `make gpu-check` on that card, or of some of its stages.
  Each line is a case: stage, case, status (ok, failed, skipped, cut for lack of time), seconds, and the facts measured.
  Times of operations are medians of replays of CUDA graphs: `cold_us` over inputs that together exceed the cache,
  `warm_us` over one input. `floor_us` is the time for the operation's bytes at 3.35 TB/s.

## Runs

{run}

## Goals

- **Sizes**: 100 candidates and a query of 10 tokens, in float16. n is the tokens of a candidate, w the tokens of the
  window on each side, 12x32 the heads x the numbers of a head.
- **Models** have the size of MiniLM-L6, random weights and w = 4. Their requests are timed as CUDA graphs.
- **x** is how many times as long the other takes. Where the two are of runs of different days, so are their hosts, by a
  third faster or slower: that matters for goals end to end and of the host's time.
- **H100, model** and **H200, model** are predictions ([how](../README.md#the-model-of-time)); those of w = 64 and of
  cached candidates were corrected after the first run.
- **fp8** is not there yet (goal: 1.4 x more for a loss of nDCG@10 below 0.002).

{goals}
"""
NOTHING = (
    "**Nothing has been run on a GPU yet.** No number below is measured; kernels were run on the CPU and assembled."
)

WHICH = "Of each stage, the last run on this kind of card that was not cut short:"
DATE, TIME = len("2026-01-01"), re.compile(r"^T\d{4}")  # with which the names of runs begin, before the card


def is_measured(records: Sequence[Record]) -> bool:
    """Whether these records come from a run on a GPU."""
    return bool(records) and not records[0].facts.get("dry", True)


def page(folder: Path) -> str:
    """The text of the folder's README.md, with the last run of each stage on the card that the last run was on, by the
    names of files. A run in which the stage was cut short counts only if none ended it.
    """
    told, card, last = NOTHING, "", dict[str, tuple[str, list[Record]]]()
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")]):
        if not is_measured(records := Journal(path).read()):
            continue
        run = path.name.partition(".")[0]
        date, here = run[:DATE], TIME.sub("", run[DATE:])
        last = {} if here != card else last
        card = here
        for stage, found in by_stage(records).items():
            if stage not in last or _is_cut(last[stage][1]) or not _is_cut(found):
                last[stage] = date, found
        told = f"The newest is `{path.name}`. {WHICH}\n\n{stages(last)}"
    records = [*chain.from_iterable(found for _, found in last.values())]
    return PAGE.format(run=f"{told}\n\n{service(records)}".rstrip(), goals=goals(records))


def by_stage(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each stage."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.stage, []).append(record)
    return found


def _is_cut(records: Sequence[Record]) -> bool:
    return any(record.status == "cut" for record in records)


def goals(records: Sequence[Record]) -> str:
    """A table of goals, predictions by the model of time, and measured values."""
    measurements = Measurements(records if is_measured(records) else [])
    models = [Measurements(card.records()) for card in CARDS]
    rows = []
    for goal in GOALS:
        value = goal.value(measurements)
        target = f"{'at most' if goal.at_most else 'at least'} {goal.target:g} {goal.unit}".strip()
        measured = "not measured" if value is None else f"{value:.3g} {goal.unit}".strip()
        predicted = ["" if said is None else f"{said:.3g}" for said in map(goal.value, models)]
        verdict = "" if value is None else "yes" if goal.reached(value) else "no"
        rows.append((goal.text, target, *predicted, measured, verdict))
    return table(
        ("goal", "target", *(f"{card.name}, model" for card in CARDS), "measured", "reached"), rows, numbers=False
    )


def stages(last: Mapping[str, tuple[str, Sequence[Record]]]) -> str:
    """A table of stages, with the number of cases by status. last: the date and the records of each stage."""
    rows = []
    for stage in dict.fromkeys([*(stage.name for stage in STAGES), *(name for name in last if name != "run")]):
        date, records = last.get(stage, ("", ()))
        counts = Counter(record.status for record in records)
        numbers = [str(counts[status]) for status in ("ok", "failed", "skipped", "cut")]
        rows.append((stage, date, *numbers, f"{sum(record.seconds for record in records):.0f}"))
    return table(("stage", "run", "ok", "failed", "skipped", "cut", "s"), rows, numbers=False)


def service(records: Sequence[Record]) -> str:
    """A table of what was measured of the service; empty if nothing was."""
    rows = [
        (
            record.case,
            ", ".join(f"{value:.4g} {name}" for name, value in record.facts.items() if isinstance(value, float)),
        )
        for record in records
        if record.stage == "service" and record.status == "ok"
    ]
    return table(("the service over HTTP", "measured"), rows, numbers=False) if rows else ""


if __name__ == "__main__":
    where = Path(sys.argv[1])
    (where / "README.md").write_text(page(where), encoding="utf-8")
