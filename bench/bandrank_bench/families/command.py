"""Side by side at the sizes of published re-rankers. Run as `python -m bandrank_bench families`.

One family is loaded at a time. The measurements go to a file beside the page, compressed, with the suffix .jsonl.bz2
and a line for each family; families that a run leaves out keep their lines from earlier runs.
"""

import argparse
import gc
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformers.utils.logging import set_verbosity_error

from bandrank_bench import infinity, machine
from bandrank_bench.cpu.agreement import Disagreement
from bandrank_bench.families.checkpoints import FAMILIES, Published, write_checkpoint
from bandrank_bench.families.memory import measure_memory
from bandrank_bench.families.report import markdown
from bandrank_bench.families.results import FamilyResults, read
from bandrank_bench.families.timing import time_family
from bandrank_bench.output import say, write_page
from bandrank_bench.process import make_ready
from bandrank_bench.workloads import WORKLOADS

TIMED, MEMORY = ("W1", "W2"), "memory"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. Returns 0, or 1 if systems disagree and nothing is reported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--workloads", nargs="+", choices=[*TIMED, MEMORY], default=[*TIMED, MEMORY])
    parser.add_argument("--rounds", type=int, default=0, help="clean samples of each system (default: the family's)")
    parser.add_argument("--infinity", type=Path, default=infinity.ENVIRONMENT, help="its virtual environment")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks-families.md"))
    options = parser.parse_args(arguments)
    make_ready()
    set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves it unannotated
    out: Path = options.out
    every = read(out)
    for name in options.models:
        try:
            every[name] = run_family(FAMILIES[name], options, every.get(name))
        except Disagreement as disagreement:
            say(f"no report: {disagreement}")
            return 1
        ordered = [every[family] for family in FAMILIES if family in every]
        write_page(out, markdown(ordered), "".join(results.to_json() for results in ordered))
    return 0


def run_family(published: Published, options: argparse.Namespace, earlier: FamilyResults | None) -> FamilyResults:
    """Measures one family, and drops its models afterwards. Of times and memory, those not asked for are kept from an
    earlier run.

    Raises Disagreement if a system's scores differ from the reference.
    """
    results = earlier or FamilyResults(published.name, machine.describe())
    with tempfile.TemporaryDirectory(prefix="bandrank-bench-") as folder:
        say(f"{published.name}: drawing weights")
        checkpoint = write_checkpoint(published, Path(folder) / published.name)
        if timed := [WORKLOADS[name] for name in TIMED if name in options.workloads]:
            times = time_family(published, checkpoint, timed, options.rounds, environment=options.infinity)
            results = replace(times, memory=results.memory)
        gc.collect()
        if MEMORY in options.workloads:
            results = replace(results, memory=measure_memory(published, checkpoint))
    return results
