"""Everything that needs a GPU: correctness, then speed.

    python -m bandrank_bench gpu                            writes <date>-<card>.jsonl and README.md to kernels/results
    python -m bandrank_bench gpu --dry --out build/dry.jsonl      the same without a GPU, on tiny shapes; its times mean
                                                                  nothing
    python -m bandrank_bench gpu --stages compile,operation       some stages, which then have all the time

Exit code 0 if everything that was checked for correctness is right, 1 if not, 2 if there is no GPU.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from bandrank_bench.gpu import report, watched
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.stages import STAGES, Journal, Record, Stage, run_stage
from bandrank_bench.gpu.supervise import child, supervise

BUDGET_S = 530.0  # in all; under ten minutes with start and end


def main(arguments: Sequence[str] | None = None, stages: Sequence[Stage] = STAGES) -> int:
    """Runs the stages in order, each within its share of the remaining budget; prints a short table."""
    options = _options(arguments, stages)
    if not options.dry and not torch.cuda.is_available():
        print("torch sees no GPU here; --dry does the same without one, on tiny shapes", file=sys.stderr)
        return 2
    deadline = time.monotonic() + options.budget_s
    now = datetime.now(UTC)
    out: Path = options.out
    if out.suffix != ".jsonl":
        out.mkdir(parents=True, exist_ok=True)
        out /= f"{now:%Y-%m-%dT%H%M}-{'dry' if options.dry else watched.card_name()}.jsonl"
    out.unlink(missing_ok=True)
    journal = Journal(out)
    journal.write(Record("run", "started", "ok", facts={"date": f"{now:%Y-%m-%d %H:%M} UTC", "dry": options.dry}))
    chosen = [stage for stage in stages if stage.name in options.stages]
    for number, stage in enumerate(chosen):
        shares = sum(other.share_s for other in chosen[number:])
        cap_s = (deadline - time.monotonic()) * stage.share_s / shares
        print(f"{stage.name}: up to {cap_s:.0f} s", flush=True)
        if cap_s <= 0:
            journal.write(Record(stage.name, "all", "cut", facts={"reason": "the time of the run was over"}))
        elif options.dry:
            run_stage(stage, Lab(dry=True), journal, cap_s=cap_s)
        else:
            supervise(stage, journal, child(journal), cap_s=cap_s)
        statuses = {record.status for record in journal.of(stage.name)}
        if stage.needed and "failed" in statuses and "ok" not in statuses:
            print(f"{stage.name} has failed: the run ends here")
            break
    records = journal.read()
    for record in records:
        if record.status != "ok":
            why = record.facts.get("error") or record.facts["reason"]
            print(f"{record.status}: {record.stage}: {record.case}: {why[:300]}")
    print(
        report.stages({name: ("", found) for name, found in report.by_stage(records).items()}),
        report.goals(records),
        sep="\n\n",
    )
    if not options.dry:
        (out.parent / "README.md").write_text(report.page(out.parent), encoding="utf-8")
    return 0 if all(passed(stage, records) for stage in chosen if stage.gate) else 1


def passed(stage: Stage, records: Sequence[Record]) -> bool:
    """Whether there were cases, and each was right or skipped for lack of a tool."""
    statuses = {record.status for record in records if record.stage == stage.name}
    return bool(statuses) and statuses <= {"ok", "skipped"}


def _options(arguments: Sequence[str] | None, stages: Sequence[Stage]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("kernels/results"), help="a folder, or a file *.jsonl")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--stages", default="", help="the stages to run, separated by commas (default: all)")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S)
    options = parser.parse_args(arguments)
    options.stages = options.stages.split(",") if options.stages else [stage.name for stage in stages]
    if unknown := set(options.stages) - {stage.name for stage in stages}:
        parser.error(f"unknown stages: {', '.join(sorted(unknown))}")
    return options
