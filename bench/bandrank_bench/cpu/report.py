"""The results as Markdown for people and as JSON lines for programs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from bandrank_bench.aims import aims_table
from bandrank_bench.calibrate import TOLERANCE, Sample
from bandrank_bench.cpu.agreement import Agreement
from bandrank_bench.cpu.summary import Row, best_peer, judge, speed_up
from bandrank_bench.machine import with_instructions
from bandrank_bench.output import bullets, json_line, table
from bandrank_bench.systems import WINDOW, Precision
from bandrank_bench.workloads import Workload

NOTHING = "-"
PATTERNS = f"Full is full attention, as all others have it; sparse is windows of {WINDOW} tokens on each side."
YARDSTICK = "sentence-transformers fp32"
TIMING = (
    "system",
    "clean / taken",
    "ms per request",
    "us per token [quartiles]",
    f"x {YARDSTICK}",
    "x best peer of its precision",
)


@dataclass(frozen=True)
class Results:
    """The results of a run. left_out: systems too slow to be timed, each with the reason."""

    machine: Mapping[str, str]
    ceilings: Mapping[Precision, float]
    calibration_calm_s: float
    agreements: Sequence[Agreement]
    left_out: Mapping[str, str]
    tables: Mapping[Workload, Sequence[Row]]


def markdown(results: Results) -> str:
    """The report: machine, aims, one table per workload, agreement of scores, method."""
    aims = judge({workload.name: rows for workload, rows in results.tables.items()})
    blocks = [
        with_instructions("# Benchmarks", results.machine),
        "How fast bandrank is on this CPU beside transformers, sentence-transformers, ONNX Runtime and OpenVINO. Every "
        "system scores the same texts with the same weights, in one run: text in, scores out, tokenising included. "
        "Compare the ratios; the times hold for this machine only.\n\n"
        "Written by `python -m bandrank_bench cpu --out FILE`.",
        bullets(results.machine),
        _ceilings(results),
        "## Aims",
        aims_table(aims),
        *(block for workload, rows in results.tables.items() for block in _workload(workload, rows)),
        *_left_out(results.left_out),
        "## Same scores",
        _agreement(results.agreements),
        "## How it is measured",
        _method(),
    ]
    return "\n\n".join(blocks) + "\n"


def json_lines(results: Results, samples: Iterable[Sample]) -> str:
    """A first line with the machine, then every sample, kept or not."""
    head = {
        "machine": dict(results.machine),
        "ceilings_gflops": {precision: round(speed / 1e9, 1) for precision, speed in results.ceilings.items()},
        "calibration_calm_s": results.calibration_calm_s,
        "tolerance": TOLERANCE,
        "left_out": dict(results.left_out),
    }
    return "".join(json_line(line) for line in (head, *(asdict(sample) for sample in samples)))


def _ceilings(results: Results) -> str:
    speeds = ", ".join(f"{precision} {speed / 1e9:.0f}" for precision, speed in results.ceilings.items())
    return (
        f"Fastest matrix product, in GFLOP/s (GOP/s for int8): {speeds}. The floor of a request is the time that its "
        "operations take at this speed."
    )


def _workload(workload: Workload, rows: Sequence[Row]) -> list[str]:
    head = [*TIMING, "of the full-attention floor", "of its own floor"]
    cells = [[*timing_cells(row, rows), *_floor_shares(row)] for row in rows]
    return [f"## {workload.name}: {workload.title}", table(head, cells)]


def timing_cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """A row's cells for the columns of TIMING. rows: the table's."""
    yardstick = next((other for other in rows if other.system.name == YARDSTICK), None)
    timing = row.timing
    if timing is None:
        return [row.system.name, f"0 / {row.taken}", "no clean sample", *[NOTHING] * 3]
    first, middle, last = timing.us
    return [
        f"**{row.system.name}**" if row.system.kind != "peer" else row.system.name,
        f"{row.clean} / {row.taken}",
        f"{timing.ms:,.0f}",
        f"{middle:.1f} [{first:.1f} - {last:.1f}]",
        number(speed_up(row, yardstick)),
        number(speed_up(row, best_peer(rows, row.system.precision))),
    ]


def _floor_shares(row: Row) -> list[str]:
    if row.timing is None or row.timing.floor_shares is None:
        return [NOTHING] * 2
    return [f"{share:.0%}" for share in row.timing.floor_shares]


def _left_out(left_out: Mapping[str, str]) -> list[str]:
    if not left_out:
        return []
    return ["## Left out", bullets(left_out)]


def _agreement(agreements: Sequence[Agreement]) -> str:
    explained = (
        "The largest difference from the scores of `transformers` in float32, pair by pair; the sparse pattern is "
        "given to it as a dense mask. The run stops if a float32 system differs by more than 1e-4. The checkpoint's "
        "head is random, which magnifies rounding: differences of lower precisions say little about quality."
    )
    return explained + "\n\n" + agreement_table(agreements)


def agreement_table(agreements: Iterable[Agreement]) -> str:
    """A table of each system's difference from the reference."""
    rows = [[one.system, f"{one.largest_difference:.1e}", f"{one.spread:.2f}"] for one in agreements]
    return table(["system", "largest difference", "spread of the scores"], rows)


def _method() -> str:
    return bullets(
        {
            "**Checkpoint**": "all-MiniLM-L6-v2 (6 layers, hidden 384, 12 heads) with a random head.",
            "**Systems**": f"{PATTERNS} OpenVINO is not measured in int8, because another tool has to prepare that.",
            "**Samples**": "Systems take turns in random order. Every round has new texts, so that caches of token ids "
            "are of no use. A float32 matrix product is timed before and after each sample; the sample is clean, and "
            f"counts, if both are within {TOLERANCE} x of the fastest tenth of the run. Every sample, kept or not, is "
            "in the JSON lines file beside this page.",
            "**Ratios**": "of median microseconds per token. HTTP, time over in process, is the median ratio of "
            "two calls with the same texts, one right after the other.",
            "**Precision**": "the one in which the matrix products really ran.",
            "**Floors**": "The full-attention floor counts every token of every pair in every layer. A system's own "
            "floor counts what its pattern needs, with only [CLS] in the last layer and, if sparse, each query once.",
        }
    )


def number(value: float | None) -> str:
    """Formats a ratio for a cell."""
    return NOTHING if value is None else f"{value:.2f}"
