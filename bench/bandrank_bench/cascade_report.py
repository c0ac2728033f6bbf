"""The page on cascades: quality and cost by the share of the candidates that the accurate scorer sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from bandrank_bench import machine
from bandrank_bench.output import bullets, table

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # of a query's candidates
CUTOFF = 10
NAMES = {0.0: "none: the fast scorer alone", 1.0: "all: the accurate scorer alone"}


@dataclass(frozen=True)
class Measured:
    """The measurements of a collection, for each share of the candidates; of each query, `cost` of the timed ones.

    candidates: the mean number of a query's.  ndcg: nDCG@10 against all judgements.  overlap: the share of the accurate
    scorer's ten best among the cascade's.  cost: time, as a share of the accurate scorer's over all candidates.
    """

    name: str
    candidates: float
    ndcg: Mapping[float, Sequence[float]]
    overlap: Mapping[float, Sequence[float]]
    cost: Mapping[float, Sequence[float]]

    def loss(self, share: float) -> float:
        """The mean nDCG@10 less that of the accurate scorer alone."""
        return fmean(self.ndcg[share]) - fmean(self.ndcg[1.0])


def report(collections: Sequence[Measured]) -> str:
    """The page: means over the collections, each of the same weight, then nDCG@10 on each, and the facts."""
    rows = []
    for share in SHARES:
        worst = min(collections, key=lambda each: each.loss(share))
        rows.append(
            [
                NAMES.get(share, f"{share:.0%}"),
                f"{fmean(fmean(each.ndcg[share]) for each in collections):.4f}",
                f"{fmean(each.loss(share) for each in collections):+.4f}",
                f"{worst.loss(share):+.4f}, {worst.name}" if share < 1 else "",
                f"{fmean(fmean(each.overlap[share]) for each in collections):.3f}",
                f"{fmean(fmean(each.cost[share]) for each in collections):.3f}",
            ]
        )
    each_row = [
        [
            each.name,
            str(len(each.ndcg[1.0])),
            f"{each.candidates:.0f}",
            *(f"{fmean(each.ndcg[share]):.4f}" for share in SHARES),
            f"{fmean(each.cost[0.2]):.3f}",
        ]
        for each in collections
    ]
    blocks = [
        "# The cascade",
        "Written by `python -m bandrank_bench cascade`: the fast scorer ranks all candidates, and the accurate one "
        "those that it puts first. nDCG@10 is against all judgements. The candidates are the first hundred of BM25's "
        "run where a collection has one, else the judged documents. Cost is the cascade's time, as a share of what the "
        f"accurate scorer takes over all candidates, of {len(collections[0].cost[1.0])} queries a collection; the fast "
        "scorer's candidates are cached.",
        table(["accurate over", "nDCG@10", "less", "worst collection", "overlap@10", "cost"], rows),
        "nDCG@10 by the share that the accurate scorer sees, and the cost of a fifth:",
        table(["", "queries", "candidates", *(f"{share:.0%}" for share in SHARES), "cost of 20%"], each_row),
        "![nDCG over cost](benchmarks-cascade.svg)",
        bullets(machine.describe()),
    ]
    return "\n\n".join(blocks) + "\n"


def plot(collections: Sequence[Measured], path: Path) -> None:
    """Plots nDCG less the accurate scorer's over cost: each collection, and their mean."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for each in collections:
        costs = [fmean(each.cost[share]) for share in SHARES]
        axes.plot(costs, [each.loss(share) for share in SHARES], ".-", linewidth=0.8, alpha=0.6, label=each.name)
    means = [fmean(each.loss(share) for each in collections) for share in SHARES]
    costs = [fmean(fmean(each.cost[share]) for each in collections) for share in SHARES]
    axes.plot(costs, means, "ko-", label="mean")
    axes.set_xlabel("share of the time that the accurate scorer takes for all candidates")
    axes.set_ylabel("nDCG@10 less the accurate scorer's")
    axes.legend()
    figure.savefig(path)
