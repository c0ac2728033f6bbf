"""The page on what int8 does to a ranking."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from bandrank_bench import machine
from bandrank_bench.cascade import NDCG, Asked
from bandrank_bench.output import bullets, table
from bandrank_bench.systems import Scores
from bandrank_training.measures import measure
from bandrank_training.significance import difference_p

CUTOFF = 10
Scored = Mapping[str, Scores]  # of a query's candidates, by the query's id


@dataclass(frozen=True)
class Change:
    """What int8 changed on a collection.

    before, after: nDCG@10 of each query in float32 and in int8.  overlap: the share of the ten best that stay.
    largest, typical: the largest change of a score and their root mean square, as shares of the standard deviation of
    a query's scores.
    """

    before: Sequence[float]
    after: Sequence[float]
    overlap: float
    largest: float
    typical: float


def change(asked: Asked, before: Scored, after: Scored) -> Change:
    """Compares the scores in int8 with those in float32."""
    orders = [{name: np.argsort(-scores[name], kind="stable") for name in asked.listed} for scores in (before, after)]
    ndcg = [
        measure({name: [listed[index] for index in order[name]] for name, listed in asked.listed.items()}, asked.qrels)
        for order in orders
    ]
    changes = np.concatenate([(after[name] - before[name]) / before[name].std() for name in asked.listed])
    kept = [
        len({*orders[0][name][:CUTOFF]} & {*orders[1][name][:CUTOFF]}) / len(orders[0][name][:CUTOFF])
        for name in asked.listed
    ]
    before_ndcg, after_ndcg = ([values[name][NDCG] for name in asked.listed] for values in ndcg)
    return Change(
        before_ndcg,
        after_ndcg,
        overlap=fmean(kept),
        largest=float(np.abs(changes).max()),
        typical=float(np.sqrt((changes**2).mean())),
    )


def report(names: Sequence[str], changes: Mapping[str, Sequence[Change]], depth: int) -> str:
    """The page. names: of the collections.  changes: of each system, one for each collection."""
    head = ["", "collection", "queries", "float32", "int8", "change", "p", "overlap@10", "largest change", "typical"]
    rows = []
    for system, each in changes.items():
        for name, found in zip(names, each, strict=True):
            differences = [after - before for before, after in zip(found.before, found.after, strict=True)]
            rows.append(
                [
                    system,
                    name,
                    str(len(differences)),
                    f"{fmean(found.before):.4f}",
                    f"{fmean(found.after):.4f}",
                    f"{fmean(differences):+.4f}",
                    f"{difference_p(differences):.3f}",
                    f"{found.overlap:.3f}",
                    f"{found.largest:.2f}",
                    f"{found.typical:.3f}",
                ]
            )
    blocks = [
        "# What int8 does to a ranking",
        "nDCG@10 in int8 and in float32, of the same weights: all-MiniLM-L6-v2, a bi-encoder, in bandrank's int8, "
        "with a scale for each row of activations, and in ONNX Runtime's dynamic int8, as `quantize_dynamic` makes it, "
        "with one for each batch.\n\nWritten by `python -m bandrank_bench int8`.",
        table(head, rows),
        bullets(
            {
                "candidates": f"the first {depth} of a query in BM25's run if a collection has one, else the judged "
                "documents",
                "p": "of a paired t test of the queries' nDCG@10",
                "overlap@10": "the share of the ten best in float32 that are among the ten best in int8",
                "largest, typical": "the largest change of a score, and the root mean square of all, as shares of the "
                "standard deviation of a query's scores",
            }
        ),
        bullets(machine.describe()),
    ]
    return "\n\n".join(blocks) + "\n"
