"""compare: compares systems with a baseline, one row for each collection, with tests of equivalence and difference."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bandrank.models.checkpoint import write_whole
from bandrank_training.measures import MEASURES
from bandrank_training.results import BadEvaluation, Benchmark, Evaluation, read_evaluation
from bandrank_training.significance import difference_p, equivalence_p, holm

MARGIN = 0.02  # for means over queries; two test sets of the same task differ by more
ALPHA = 0.05

ALL = Benchmark("all queries", "", "", 1)  # all queries of several collections; each query counts the same

Table = dict[Benchmark, dict[str, Evaluation]]  # by benchmark and system


@dataclass(frozen=True)
class Verdict:
    """What the tests say about a system and the baseline, after correction. Both may hold: a difference can be certain
    but too small to matter.
    """

    equivalent: bool
    different: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE.json",
        help="results of `evaluate`; the first one's system is the baseline",
    )
    parser.add_argument("--measure", choices=MEASURES, default=MEASURES[0], help=f"(default: {MEASURES[0]})")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the table here instead of printing it")


def run(args: argparse.Namespace) -> int:
    """Prints or writes the table. Raises BadEvaluation."""
    text = compare([read_evaluation(path) for path in args.files], measure=args.measure)
    if args.out:
        write_whole(args.out, text.encode())
    else:
        print(text, end="")  # noqa: T201 - the result
    return 0


def compare(evaluations: Sequence[Evaluation], *, measure: str = MEASURES[0]) -> str:
    """Returns a Markdown table of means. The first evaluation's system is the baseline. A system that lacks a
    collection gets a dash there and in the rows for all collections. Raises BadEvaluation.
    """
    baseline = evaluations[0].system
    table = tabulate(evaluations)
    single = list(table.values())
    if len(single) > 1:
        table[ALL] = pool(table)
    systems = list(dict.fromkeys(evaluation.system for evaluation in evaluations))
    verdicts = judge(table, baseline, measure=measure)
    rows = []
    for benchmark, by_system in table.items():
        cells = [
            f"{_mean(by_system[system], measure):.3f}{_marks(verdicts.get((benchmark, system)))}"
            if system in by_system
            else "-"
            for system in systems
        ]
        rows.append(
            [benchmark.collection if benchmark == ALL else str(benchmark), str(len(by_system[baseline].values)), *cells]
        )
    totals = []
    for system in systems:
        values = [_mean(by_system[system], measure) for by_system in single if system in by_system]
        totals.append(f"{sum(values) / len(values):.3f}" if len(values) == len(single) else "-")
    rows.append([f"mean of {len(single)}", "", *totals])
    lines = [["collection", "queries", *systems], ["---", *["---:"] * (len(systems) + 1)], *rows]
    legend = (
        f"{measure}. † equivalent to {baseline} within ±{MARGIN} (two one-sided paired t tests), \\* different from it "
        f"(paired t test); p < {ALPHA} after Holm's correction over the {len(verdicts)} comparisons of the table.\n"
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{legend}"


def tabulate(evaluations: Iterable[Evaluation]) -> Table:
    """Groups evaluations by benchmark and system. Raises BadEvaluation for a duplicate, and for different judgements or
    candidates under the same names.
    """
    table: Table = {}
    for evaluation in evaluations:
        by_system = table.setdefault(evaluation.benchmark, {})
        if evaluation.system in by_system:
            raise BadEvaluation(f"{evaluation.system} on {evaluation.benchmark} is there twice; give one another --tag")
        for other in by_system.values():
            if differing := evaluation.benchmark.differing(other.benchmark):
                both = f"{evaluation.system} and {other.system} were evaluated on {evaluation.benchmark}"
                raise BadEvaluation(f"{both}, but with {differing}; evaluate both on the same")
        by_system[evaluation.system] = evaluation
    return table


def pool(table: Table) -> dict[str, Evaluation]:
    """Pools the queries of all benchmarks into one evaluation, for each system that has them all."""
    systems = [system for system in next(iter(table.values())) if all(system in each for each in table.values())]
    return {
        system: Evaluation(
            system,
            ALL,
            {
                f"{number} {query_id}": values
                for number, by_system in enumerate(table.values())
                for query_id, values in by_system[system].values.items()
            },
        )
        for system in systems
    }


def judge(table: Table, baseline: str, *, measure: str) -> dict[tuple[Benchmark, str], Verdict]:
    """The verdict on each system other than the baseline, on each benchmark. Raises BadEvaluation."""
    differences = {
        (benchmark, system): _differences(by_system.get(baseline), evaluation, measure)
        for benchmark, by_system in table.items()
        for system, evaluation in by_system.items()
        if system != baseline
    }
    try:
        equivalent = holm([equivalence_p(each, margin=MARGIN) for each in differences.values()])
        different = holm([difference_p(each) for each in differences.values()])
    except ValueError as error:
        raise BadEvaluation(f"{baseline} cannot be compared: {error}") from error
    return {
        cell: Verdict(equivalent=same < ALPHA, different=other < ALPHA)
        for cell, same, other in zip(differences, equivalent, different, strict=True)
    }


def _differences(baseline: Evaluation | None, other: Evaluation, measure: str) -> list[float]:
    """The other system's values minus the baseline's, query by query. Raises BadEvaluation if their queries differ."""
    if baseline is None:
        raise BadEvaluation(f"the baseline has no evaluation on {other.benchmark}, which {other.system} has")
    ours, theirs = baseline.values, other.values
    if ours.keys() != theirs.keys():
        raise BadEvaluation(
            f"{other.benchmark}: {baseline.system} has {len(ours)} queries and {other.system} {len(theirs)}, of which "
            f"{len(ours.keys() & theirs.keys())} are the same; evaluate both on the same qrels"
        )
    return [theirs[query_id][measure] - ours[query_id][measure] for query_id in ours]


def _mean(evaluation: Evaluation, measure: str) -> float:
    return sum(values[measure] for values in evaluation.values.values()) / len(evaluation.values)


def _marks(verdict: Verdict | None) -> str:
    return "" if verdict is None else "†" * verdict.equivalent + "\\*" * verdict.different
