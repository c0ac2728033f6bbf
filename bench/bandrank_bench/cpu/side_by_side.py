"""Side by side: bandrank and other runtimes on one checkpoint. Run as `python -m bandrank_bench cpu`.

The samples go to a file beside the page, with the suffix .jsonl.bz2.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bandrank_bench import machine
from bandrank_bench.calibrate import Calibration, Sample
from bandrank_bench.checkpoint import write_patterns
from bandrank_bench.cpu.agreement import Disagreement, check, reference_scores
from bandrank_bench.cpu.floor import full_flops, measure_ceilings, needed_flops
from bandrank_bench.cpu.measure import measure
from bandrank_bench.cpu.report import YARDSTICK, Results, json_lines, markdown
from bandrank_bench.cpu.summary import Floor, summarise
from bandrank_bench.ours import open_ours
from bandrank_bench.output import say, write_page
from bandrank_bench.process import make_ready
from bandrank_bench.systems import WINDOW, Precision, System
from bandrank_bench.workloads import WORKLOADS, Request, Workload, Writer, load_tokenizer

TOO_SLOW = 8.0  # times the yardstick: admits emulated bfloat16, but no reference loops, ten times slower still
PROBE_PASSAGES = 4
CHECKED_PASSAGES = 24
WARM_UP_ROUND, PROBE_ROUND, CHECK_ROUND = 1001, 1002, 1003  # not timed rounds, so with other texts


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. Returns 0, or 1 if systems disagree and nothing is reported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=0, help="clean samples of each system (default: the workload's)")
    parser.add_argument(
        "--only", nargs="+", default=[""], help=f"systems whose name contains one of these, and {YARDSTICK}"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks.md"))
    options = parser.parse_args(arguments)
    from bandrank_bench.cpu.peers import load_peers  # noqa: PLC0415  # tests lack its runtimes

    make_ready()
    workloads = [WORKLOADS[name] for name in options.workloads]
    out: Path = options.out
    with tempfile.TemporaryDirectory(prefix="bandrank-bench-") as folder, ExitStack() as stack:
        work = Path(folder)
        checkpoints = write_patterns(work)
        writer = Writer(load_tokenizer(checkpoints["full"]))
        say("loading and converting")
        every = [*load_peers(checkpoints["full"], work), *open_ours(stack, checkpoints, work)]
        chosen = [system for system in every if any(part in system.name for part in (*options.only, YARDSTICK))]
        systems, left_out = leave_out_slow(chosen, WORKLOADS["W2"].request(writer, PROBE_ROUND))
        checked = WORKLOADS["W1"].request(writer, CHECK_ROUND).head(CHECKED_PASSAGES)
        try:
            agreements = check(systems, checked, reference_scores(checkpoints, checked))
        except Disagreement as disagreement:
            say(f"no report: {disagreement}")
            return 1
        calibration = Calibration()
        precisions = {system.precision for system in systems}
        ceilings = measure_ceilings(precisions)
        samples = [
            sample
            for workload in workloads
            for sample in measure(
                workload,
                systems,
                writer,
                rounds=options.rounds or workload.rounds,
                warm_up=workload.request(writer, WARM_UP_ROUND),
                calibration=calibration,
            )
        ]
        for precision, speed in measure_ceilings(precisions).items():  # again, in case the first met a slow phase
            ceilings[precision] = max(ceilings[precision], speed)
    results = Results(
        machine=machine.describe() | {"calibration product": calibration.describe()},
        ceilings=ceilings,
        calibration_calm_s=calibration.calm_s,
        agreements=agreements,
        left_out=left_out,
        tables={
            workload: summarise(
                [sample for sample in samples if sample.workload == workload.name],
                systems,
                calibration.calm_s,
                floors(workload, writer, ceilings),
            )
            for workload in workloads
        },
    )
    write_page(out, markdown(results), json_lines(results, samples))
    return 0


def leave_out_slow(systems: Sequence[System], probe: Request) -> tuple[list[System], dict[str, str]]:
    """Returns the systems worth timing, and the reason why each other one is not."""
    few = probe.head(PROBE_PASSAGES)

    def seconds(system: System) -> float:
        system.score(few.query, few.passages[:1])
        started = time.perf_counter()
        system.score(few.query, few.passages)
        return time.perf_counter() - started

    taken = {system.name: seconds(system) for system in systems}
    slow = {name: took / taken[YARDSTICK] for name, took in taken.items() if took > TOO_SLOW * taken[YARDSTICK]}
    reasons = {
        name: f"took {taken[name]:.1f} s for {len(few.passages)} pairs of {few.pair_tokens[0]} tokens, "
        f"{times:.0f} x {YARDSTICK}"
        for name, times in slow.items()
    }
    return [system for system in systems if system.name not in slow], reasons


def floors(workload: Workload, writer: Writer, ceilings: dict[Precision, float]) -> Floor:
    """Returns a function from a sample to its floors: with full attention, and with its system's pattern."""

    def floor(sample: Sample, system: System) -> tuple[float, float]:
        request = workload.request(writer, sample.round_number)
        precision = system.precision
        full = full_flops(request).seconds(precision, ceilings)
        return full, needed_flops(request, system.pattern, WINDOW).seconds(precision, ceilings)

    return floor
