"""The page on what int8 does to a ranking."""

from collections.abc import Mapping, Sequence

from bandrank_bench import machine
from bandrank_bench.output import bullets
from bandrank_training.quantising import Row, table


def report(rows: Mapping[str, Sequence[Row]], depth: int) -> str:
    """The page. rows: of each system, one for each collection."""
    blocks = [
        "# What int8 does to a ranking",
        "nDCG@10 in int8 and in float32, of the same weights: all-MiniLM-L6-v2, a bi-encoder, in bandrank's int8, "
        "with a scale for each row of activations, and in ONNX Runtime's dynamic int8, as `quantize_dynamic` makes it, "
        "with one for each batch.\n\nWritten by `python -m bandrank_bench int8`.",
        *(f"## {system}\n\n{table(of_system, 'int8')}" for system, of_system in rows.items()),
        bullets(
            {
                "candidates": f"the first {depth} of a query in BM25's run if a collection has one, else the judged "
                "documents",
                "p": "of a paired t test of the queries' nDCG@10",
                "overlap@10": "the share of the ten best in float32 that are among the ten best in int8",
                "Kendall's tau": "of all candidates of a query, the mean over queries",
                "largest change, typical": "the largest change of a score, and the root mean square of all",
                "spread": "the standard deviation of a query's scores in float32, the mean over queries",
            }
        ),
        bullets(machine.describe()),
    ]
    return "\n\n".join(blocks) + "\n"
