"""How deep a cascade must go: quality and cost of re-ranking only the fast scorer's best with the accurate one.

Run as `python -m bandrank_bench cascade --collection FOLDER --run FILE [--split test]`: a collection in BEIR layout and
a TREC run, whose first candidates of each query are re-ranked. Writes a table, and a plot beside it. The fast scorer's
candidates are cached, the accurate one's texts tokenised, before a query is timed.
"""

import argparse
import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from bandrank.engine.clients import ITSELF
from bandrank.engine.sources import RepresentationSource
from bandrank.engine.tickets import Ticket
from bandrank.serving import assemble, load_models
from bandrank.settings import Settings
from bandrank_bench import machine
from bandrank_bench.output import bullets, say, table
from bandrank_training.candidates import first_stage
from bandrank_training.collection import documents_of, open_collection
from bandrank_training.dev import ndcg

DEPTHS = (5, 10, 20, 30, 50)
CANDIDATES = 100
CUTOFF = 10


@dataclass
class Depth:
    """The measurements of one depth, an entry for each query.

    overlap: share of the accurate scorer's ten best among the cascade's.  cost: time as a share of the accurate
    scorer's over all.
    """

    overlap: list[float] = field(default_factory=list)
    ndcg: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Judged:
    """A query of the collection, with its candidates in the order of the run."""

    query: str
    texts: list[str]
    labels: list[int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and writes the page and its plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--queries", type=int, default=40, help="drawn at random (default: 40)")
    parser.add_argument("--fast", default="", help="default: what the service serves")
    parser.add_argument("--accurate", default=Settings().model)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks-cascade.md"))
    args = parser.parse_args(arguments)
    asked = read(args.collection, args.split, args.run, args.queries)
    settings = Settings(model=args.accurate, fast_model=args.fast, device="cpu", request_timeout_s=900.0)
    depths = asyncio.run(measure(settings, asked))
    args.out.write_text(report(depths, args.collection.resolve().name, args.split, len(asked)), encoding="utf-8")
    plot(depths, args.out.with_suffix(".svg"))
    say(f"wrote {args.out}")
    return 0


def read(folder: Path, split: str, run: Path, count: int) -> list[Judged]:
    """Judged queries with at least as many candidates as the deepest cascade scores."""
    collection = open_collection(folder)
    queries, qrels, ranked = collection.queries(), collection.qrels(split), first_stage(run, CANDIDATES)
    names = sorted(name for name in qrels if len(ranked.get(name, ())) >= max(DEPTHS))
    chosen = random.Random(0).sample(names, min(count, len(names)))
    texts = documents_of(collection, {document for name in chosen for document, _ in ranked[name]})
    return [
        Judged(
            queries[name],
            [texts[document] for document, _ in ranked[name]],
            [max(0, qrels[name].get(document, 0)) for document, _ in ranked[name]],
        )
        for name in chosen
    ]


async def measure(settings: Settings, asked: Sequence[Judged]) -> dict[int, Depth]:
    """The measurements of each depth; 0 is the fast scorer alone, CANDIDATES the accurate one alone."""
    serving = assemble(load_models(settings), settings)
    sources = (scorer.source for scorer in serving.models.default.engine.text_scorers)
    fast_source = next(source for source in sources if isinstance(source, RepresentationSource))

    async def ranked(one: Judged, indices: Sequence[int], stage: str) -> tuple[list[int], float]:
        started = time.perf_counter()
        ranking = await serving.models.default.rank(one.query, [one.texts[index] for index in indices], strategy=stage)
        return [indices[result.index] for result in ranking.candidates], time.perf_counter() - started

    depths = {depth: Depth() for depth in (0, *DEPTHS, CANDIDATES)}
    for number, one in enumerate(asked, 1):
        say(f"query {number} of {len(asked)}")
        everyone = range(len(one.texts))
        await fast_source.represent(one.texts, ticket=Ticket(ITSELF, math.inf))
        await ranked(one, everyone, "accurate")  # tokenises
        best, all_s = await ranked(one, everyone, "accurate")
        fast, fast_s = await ranked(one, everyone, "fast")
        for depth, seen in depths.items():
            order, seconds = best, all_s
            if depth < CANDIDATES:
                survivors, extra_s = await ranked(one, fast[:depth], "accurate") if depth else ([], 0.0)
                order, seconds = [*survivors, *fast[depth:]], fast_s + extra_s
            seen.overlap.append(len({*order[:CUTOFF]} & {*best[:CUTOFF]}) / CUTOFF)
            seen.ndcg.append(ndcg([one.labels[index] for index in order]))
            seen.cost.append(seconds / all_s)
    await serving.models.close()
    return depths


def report(depths: dict[int, Depth], collection: str, split: str, num_queries: int) -> str:
    """The page: the table and the facts of the machine."""
    names = {0: "fast alone", CANDIDATES: "accurate alone"}
    rows = [
        [
            names.get(depth, str(depth)),
            f"{fmean(seen.overlap):.3f}",
            f"{fmean(seen.ndcg):.4f}",
            f"{fmean(seen.cost):.3f}",
        ]
        for depth, seen in depths.items()
    ]
    blocks = [
        "# The cascade",
        f"{num_queries} queries of {collection} {split}, the BM25 top {CANDIDATES} of each re-ranked; written by "
        "`python -m bandrank_bench cascade`. nDCG@10 is that of the candidates given. Cost is the cascade's time, as a "
        "share of the accurate scorer's over all candidates; the fast scorer's candidates are cached.",
        table(["depth", "overlap@10 with accurate", "nDCG@10", "cost"], rows),
        "![Overlap and nDCG over cost](benchmarks-cascade.svg)",
        bullets(machine.describe()),
    ]
    return "\n\n".join(blocks) + "\n"


def plot(depths: dict[int, Depth], path: Path) -> None:
    """Plots overlap and nDCG over cost."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    costs = [fmean(seen.cost) for seen in depths.values()]
    axes.plot(costs, [fmean(seen.overlap) for seen in depths.values()], "o-", label="overlap@10 with accurate alone")
    axes.plot(costs, [fmean(seen.ndcg) for seen in depths.values()], "s-", label="nDCG@10")
    for depth, seen in depths.items():
        axes.annotate(str(depth), (fmean(seen.cost), fmean(seen.overlap)), xytext=(4, -12), textcoords="offset points")
    axes.set_xlabel("share of the time that the accurate scorer takes for all")
    axes.legend()
    figure.savefig(path)
