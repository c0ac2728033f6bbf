"""The page on cascades: quality and cost by the number of candidates that the accurate scorer sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from bandrank_bench import machine
from bandrank_bench.figures import save
from bandrank_bench.output import bullets, table

ALL = 100  # the most candidates of a query
DEPTHS = (0, 5, 10, 20, 30, 50, ALL)
SHOWN = 20  # the depth whose cost is shown for each collection
CUTOFF = 10
NAMES = {0: "none: the fast scorer alone", ALL: "all: the accurate scorer alone"}


@dataclass(frozen=True)
class Measured:
    """The measurements of a collection: for each depth, a value per query (`cost`: per timed query).

    candidates: the mean number per query.  ndcg: nDCG@10 against all judgements.  overlap: the share of the accurate
    scorer's ten best among the cascade's ten.  cost: the time, relative to scoring all candidates accurately.
    """

    name: str
    candidates: float
    ndcg: Mapping[int, Sequence[float]]
    overlap: Mapping[int, Sequence[float]]
    cost: Mapping[int, Sequence[float]]

    def change(self, depth: int) -> float:
        """The mean nDCG@10 minus that of the accurate scorer alone."""
        return fmean(self.ndcg[depth]) - fmean(self.ndcg[ALL])


def report(collections: Sequence[Measured]) -> str:
    """The page: means over collections with equal weights, then nDCG@10 on each, and the facts."""
    rows = []
    for depth in DEPTHS:
        worst = min(collections, key=lambda each: each.change(depth))
        rows.append(
            [
                NAMES.get(depth, str(depth)),
                f"{fmean(fmean(each.ndcg[depth]) for each in collections):.4f}",
                f"{fmean(each.change(depth) for each in collections):+.4f}",
                f"{worst.change(depth):+.4f}, {worst.name}" if depth < ALL else "",
                f"{fmean(fmean(each.overlap[depth]) for each in collections):.3f}",
                f"{fmean(fmean(each.cost[depth]) for each in collections):.3f}",
            ]
        )
    each_row = [
        [
            each.name,
            str(len(each.ndcg[ALL])),
            f"{each.candidates:.0f}",
            *(f"{fmean(each.ndcg[depth]):.4f}" for depth in DEPTHS),
            f"{fmean(each.cost[SHOWN]):.3f}",
        ]
        for each in collections
    ]
    blocks = [
        "# The cascade",
        "What a cascade loses in quality and saves in time, by the number of candidates that the accurate scorer sees. "
        "The fast scorer ranks all candidates, and the accurate one those that it puts first.\n\n"
        "Written by `python -m bandrank_bench cascade`.",
        bullets(
            {
                "nDCG@10": "against all judgements; the change is from the accurate scorer alone",
                "candidates": "the first hundred of BM25's run if a collection has one, else the judged documents",
                "overlap@10": "the share of the accurate scorer's ten best that are among the cascade's",
                "cost": "the cascade's time as a share of what the accurate scorer takes for all candidates, of "
                f"{len(collections[0].cost[ALL])} queries a collection. The fast scorer's candidates are cached. A "
                "list no longer than the depth costs more than with the accurate scorer alone; for such a list the "
                "strategy `auto` takes that scorer",
            }
        ),
        table(["accurate over", "nDCG@10", "change", "worst collection", "overlap@10", "cost"], rows),
        f"nDCG@10 by the number of candidates that the accurate scorer sees, and the cost of {SHOWN}:",
        table(["", "queries", "candidates", *map(str, DEPTHS[:-1]), "all", f"cost of {SHOWN}"], each_row),
        "![nDCG over cost](benchmarks-cascade.svg)",
        bullets(machine.describe()),
    ]
    return "\n\n".join(blocks) + "\n"


def plot(collections: Sequence[Measured], path: Path) -> None:
    """Plots the change in nDCG from the accurate scorer over cost: each collection, and their mean."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for each in collections:
        costs = [fmean(each.cost[depth]) for depth in DEPTHS]
        axes.plot(costs, [each.change(depth) for depth in DEPTHS], ".-", linewidth=0.8, alpha=0.6, label=each.name)
    means = [fmean(each.change(depth) for each in collections) for depth in DEPTHS]
    costs = [fmean(fmean(each.cost[depth]) for each in collections) for depth in DEPTHS]
    axes.plot(costs, means, "ko-", label="mean")
    axes.set_xlabel("share of the time that the accurate scorer takes for all candidates")
    axes.set_ylabel("nDCG@10 less the accurate scorer's")
    axes.legend()
    save(figure, path)
