"""How deep a cascade must go: quality and cost of re-ranking only the fast scorer's best with the accurate one.

Run as `python -m bandrank_bench cascade COLLECTION[:SPLIT] ...`: folders in BEIR layout. The candidates of a query are
the first hundred of a TREC run, FOLDER/runs/*.SPLIT.trec.gz or *.all.trec.gz (of several the first by name), or the
judged documents if there is no run. Writes a page, and a plot beside it.

A candidate's score does not depend on the other candidates, so the fast and the accurate scores of all candidates give
the ranking of a cascade of any depth. The time is measured on fewer queries, with the fast scorer's candidates cached
and the texts tokenised.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tqdm import tqdm

from bandrank.engine.served import ServedModel
from bandrank.serving import assemble, load_models
from bandrank.settings import Settings
from bandrank_bench.cascade_report import ALL, CUTOFF, DEPTHS, Measured, plot, report
from bandrank_bench.output import say, write_page
from bandrank_training.candidates import Candidates, first_stage, ids_of, pools
from bandrank_training.collection import BadCollection, Qrels, documents_of, open_collection
from bandrank_training.measures import measure

NDCG = "nDCG@10"
SEED = 0


@dataclass(frozen=True)
class Asked:
    """Queries of a collection. texts: the texts of all candidates, by id.  listed: the candidates of each query."""

    name: str
    qrels: Qrels
    listed: Candidates
    queries: dict[str, str]
    texts: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and writes the page and its plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("collections", nargs="+", metavar="COLLECTION[:SPLIT]", help="folders (default split: test)")
    parser.add_argument("--queries", type=int, default=150, help="how many to draw from each collection (default: 150)")
    parser.add_argument("--timed", type=int, default=10, help="how many of these to time (default: 10)")
    parser.add_argument("--fast", default="", help="the fast scorer (default: the service's)")
    parser.add_argument("--accurate", default=Settings().model)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks-cascade.md"))
    args = parser.parse_args(arguments)
    asked = [read(name, args.queries) for name in args.collections]
    settings = Settings(model=args.accurate, fast_model=args.fast, device="cpu", request_timeout_s=900.0)
    measured = asyncio.run(measure_all(settings, asked, args.timed))
    write_page(args.out, report(measured))
    plot(measured, args.out.with_suffix(".svg"))
    return 0


def read(named: str, count: int) -> Asked:
    """Reads judged queries that have candidates, from FOLDER or FOLDER:SPLIT. Raises BadCollection."""
    folder, _, split = named.partition(":")
    split = split or "test"
    collection = open_collection(Path(folder))
    qrels = collection.qrels(split)
    runs = [file for end in (split, "all") for file in sorted(Path(folder).glob(f"runs/*.{end}.trec.gz"))]
    say(f"{collection.name} {split}: candidates of {runs[0] if runs else 'the judgements'}")
    listed = (
        ids_of(first_stage(runs[0], ALL)) if runs else {name: listed[:ALL] for name, listed in pools(qrels).items()}
    )
    candidates = [name for name in sorted(qrels) if listed.get(name)]
    if not candidates:
        raise BadCollection(f"{named}: no judged query has candidates")
    chosen = random.Random(SEED).sample(candidates, min(count, len(candidates)))
    return Asked(
        f"{collection.name} {split}",
        {name: qrels[name] for name in chosen},
        {name: listed[name] for name in chosen},
        collection.queries(),
        documents_of(collection, {document for name in chosen for document in listed[name]}),
    )


async def measure_all(settings: Settings, collections: Sequence[Asked], timed: int) -> list[Measured]:
    """Measures each collection."""
    serving = assemble(load_models(settings), settings)
    try:
        return [await measure_one(serving.models.default, asked, timed) for asked in collections]
    finally:
        await serving.models.close()


async def measure_one(model: ServedModel, asked: Asked, timed: int) -> Measured:
    """Measures a collection's queries, and times the first `timed` of them."""
    say(f"{asked.name}: {len(asked.listed)} queries")
    rankings: dict[int, Candidates] = {depth: {} for depth in DEPTHS}
    overlap: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    cost: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for number, (name, listed) in enumerate(tqdm(asked.listed.items(), desc=asked.name, unit="query", disable=None)):
        query, texts = asked.queries[name], [asked.texts[document] for document in listed]
        fast, _ = await ranked(model, query, texts, "fast")
        best, _ = await ranked(model, query, texts, "accurate")
        orders = {depth: cascaded(fast, best, depth) for depth in DEPTHS}
        for depth, order in orders.items():
            rankings[depth][name] = [listed[index] for index in order]
            overlap[depth].append(len({*order[:CUTOFF]} & {*best[:CUTOFF]}) / min(CUTOFF, len(listed)))
        if number < timed:
            _, fast_s = await ranked(model, query, texts, "fast")
            _, all_s = await ranked(model, query, texts, "accurate")
            for depth in DEPTHS:
                survivors = [texts[index] for index in fast[:depth]]
                _, extra_s = await ranked(model, query, survivors, "accurate") if survivors else ([], 0.0)
                cost[depth].append(1.0 if depth == ALL else (fast_s + extra_s) / all_s)
    ndcg = {
        depth: [values[NDCG] for values in measure(of_depth, asked.qrels).values()]
        for depth, of_depth in rankings.items()
    }
    return Measured(asked.name, fmean(map(len, asked.listed.values())), ndcg, overlap, cost)


async def ranked(model: ServedModel, query: str, texts: Sequence[str], stage: str) -> tuple[list[int], float]:
    """Ranks the candidates; returns their indices, best first, and the seconds taken."""
    started = time.perf_counter()
    ranking = await model.rank(query, texts, strategy=stage)
    return [result.index for result in ranking.candidates], time.perf_counter() - started


def cascaded(fast: Sequence[int], accurate: Sequence[int], depth: int) -> list[int]:
    """The ranking of a cascade: the fast scorer's best in accurate order, then the others in fast order."""
    survivors = {*fast[:depth]}
    return [*(index for index in accurate if index in survivors), *fast[depth:]]
