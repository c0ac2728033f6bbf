"""quantise: measures what a checkpoint's rankings lose in int8 or bfloat16, compared with float32. A checkpoint that
loses little is marked as fit for that dtype, so that a service on a CPU may choose it.

For int8, layers are measured first: each that changes scores too much by itself stays in float32.
"""

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
from scipy import stats

from bandrank.dtypes import DtypeName
from bandrank.models.checkpoint import BadCheckpoint, Precision, is_checkpoint, load_precision, save_precision
from bandrank.models.loading import LoadedModel
from bandrank.models.placement import DTYPES
from bandrank.models.quantised import why_not_quantised
from bandrank.models.shipped import shipped
from bandrank_training.arguments import positive
from bandrank_training.bm25 import BM25
from bandrank_training.candidates import Candidates, Ranking, ids_of
from bandrank_training.collection import Collection, Qrels, documents_of, open_collection
from bandrank_training.evaluation import rerank
from bandrank_training.measures import MEASURES, judged, measure
from bandrank_training.placement import CPU, Placement
from bandrank_training.progress import progress
from bandrank_training.results import BadEvaluation
from bandrank_training.scoring import Question, score_offline
from bandrank_training.sensitivity import changes_of_layers, report_of, sensitive
from bandrank_training.significance import difference_p
from bandrank_training.start import load_start

MARGIN = 0.003  # of mean nDCG@10, on each collection and over all queries
CHANCE = 0.05  # a one-sided t test with a smaller p rules out that a larger loss is chance
TOP = 10
QUERIES, CANDIDATES = 8, 20  # the first of each collection, for measuring layers
EXACT: DtypeName = "float32"
INT8: DtypeName = "int8"


@dataclass(frozen=True)
class Row:
    """What another dtype changes on one collection.

    exacts, nears: nDCG@10 of each query in float32 and in the other dtype.  overlap: the mean share of the ten best
    that both have.  tau: the mean over queries of Kendall's tau of all candidates.  largest, typical: the largest
    change of a score, and the root mean square of all.  spread: the mean standard deviation of a query's scores, for
    comparison.
    """

    collection: str
    exacts: Sequence[float]
    nears: Sequence[float]
    overlap: float
    tau: float
    largest: float
    typical: float
    spread: float

    @classmethod
    def of(cls, collection: str, exact: Mapping[str, Ranking], near: Mapping[str, Ranking], qrels: Qrels) -> Self:
        """Compares two rankings of the same candidates of each query, the first in float32."""
        both = [(dict(exact[query_id]), dict(near[query_id])) for query_id in exact]
        changes = np.array([other[each] - one[each] for one, other in both for each in one])
        return cls(
            collection,
            exacts=_measured(ids_of(exact), qrels),
            nears=_measured(ids_of(near), qrels),
            overlap=float(np.mean([_overlap(exact[query_id], near[query_id]) for query_id in exact])),
            tau=float(np.mean([_tau(*pair) for pair in both])),
            largest=float(np.abs(changes).max()),
            typical=float(np.sqrt((changes**2).mean())),
            spread=float(np.mean([np.std(list(one.values())) for one, _ in both])),
        )

    @property
    def exact(self) -> float:
        """The mean measure in float32."""
        return float(np.mean(self.exacts))

    @property
    def near(self) -> float:
        """The mean measure in the other dtype."""
        return float(np.mean(self.nears))

    @property
    def changes(self) -> list[float]:
        """The change of each query's measure by the other dtype."""
        return [near - exact for exact, near in zip(self.exacts, self.nears, strict=True)]

    @property
    def p(self) -> float:
        """The p of a paired t test of both measures; NaN for one query, which tells nothing."""
        return difference_p(self.changes) if len(self.changes) > 1 else math.nan

    @property
    def passes(self) -> bool:
        """Whether the other dtype loses at most `MARGIN`, or more but perhaps by chance: with few queries, the mean
        changes by 0.01 when two candidates change places.
        """
        return within_margin(self.changes) or self.p / 2 >= CHANCE


def within_margin(changes: Sequence[float]) -> bool:
    """Whether the mean loss is at most `MARGIN`."""
    return float(np.mean(changes)) >= -MARGIN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "model", metavar="CHECKPOINT", help="a folder in bandrank's format, or the name of a shipped one"
    )
    parser.add_argument(
        "--dev", required=True, action="append", metavar="FOLDER", help="a collection in BEIR layout; may be repeated"
    )
    parser.add_argument("--dtype", choices=(INT8, "bfloat16"), default=INT8, help="what to measure (default: int8)")
    parser.add_argument("--split", default="test", help="qrels/SPLIT.tsv (default: test)")
    parser.add_argument(
        "--depth", type=positive, default=100, help="how many candidates BM25 finds for each query (default: 100)"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N queries of each collection")


def run(args: argparse.Namespace) -> int:
    """Prints the table, and sets or removes the mark. Returns 0 if the checkpoint is fit, 1 if not.

    Raises BadCheckpoint, BadCollection, BadEvaluation.
    """
    folder = shipped(args.model) or Path(args.model)
    if not is_checkpoint(folder):
        raise BadCheckpoint(f"{folder}: only checkpoints in bandrank's format can be marked; `export` writes them")
    if args.dtype == INT8 and (reason := why_not_quantised(load_start(args.model).scorer)):
        raise BadEvaluation(f"{args.model} cannot be computed in int8: {reason}")
    collections = [open_collection(each) for each in args.dev]
    judgements = [_Judgements.of(each, args) for each in collections]
    before = load_precision(folder)
    exact = before.exact_layers
    save_precision(folder, before)  # now, in case it cannot be written; until the result, it stays
    if args.dtype == INT8:
        questions = [each for one in judgements for each in one.questions()]
        changes = changes_of_layers(load_start(args.model), questions)
        exact = sensitive(changes)
        print(report_of(changes), flush=True)  # noqa: T201 - a result, minutes before the next
    rows = []
    for each in judgements:
        rows.append(row := _compare(args, each, exact))
        said = f"{row.collection}: {np.mean(row.changes):+.4f} of {row.exact:.4f}, {len(row.changes):,} queries"
        print(said, flush=True)  # noqa: T201 - minutes apart
    print(table(rows, args.dtype))  # noqa: T201 - the result
    fit = all(row.passes for row in rows) and within_margin([change for row in rows for change in row.changes])
    others = tuple(name for name in load_precision(folder).fit if name != args.dtype)
    save_precision(folder, Precision((*others, args.dtype) if fit else others, exact))
    verdict = (
        f"{folder} is {'fit' if fit else 'not fit'} for {args.dtype}: no loss beyond {MARGIN} of nDCG@10 is allowed, "
        "over all queries, nor on a collection unless by chance"
    )
    print(verdict)  # noqa: T201
    return 0 if fit else 1


def table(rows: Sequence[Row], dtype: DtypeName) -> str:
    """Returns a Markdown table, whose last line has the means over collections."""
    head = f"| | queries | float32 | {dtype} | change | p | overlap@10 | Kendall's tau | largest change | typical |"
    lines = [f"{head} spread |", f"| --- |{' --: |' * 10}"]
    lines += [
        f"| {row.collection} | {len(row.exacts):,} | {row.exact:.4f} | {row.near:.4f} | {row.near - row.exact:+.4f} | "
        f"{row.p:.3f} | {row.overlap:.3f} | {row.tau:.3f} | {row.largest:.3f} | {row.typical:.4f} | {row.spread:.3f} |"
        for row in rows
    ]
    exact, near = (float(np.mean([getattr(row, name) for row in rows])) for name in ("exact", "near"))
    return "\n".join([*lines, f"| mean | | {exact:.4f} | {near:.4f} | {near - exact:+.4f} | | | | | | |"])


@dataclass(frozen=True)
class _Judgements:
    """A collection's judged queries, the candidates that BM25 finds for them, if any, and the candidates' texts."""

    collection: Collection
    qrels: Qrels
    candidates: Candidates
    documents: Mapping[str, str]

    @classmethod
    def of(cls, collection: Collection, args: argparse.Namespace) -> Self:
        """Takes the queries that have a text. Raises BadEvaluation if every order of what BM25 finds is as good."""
        queries = collection.queries()
        known = (item for item in judged(collection.qrels(args.split), 1).items() if item[0] in queries)
        qrels = dict(islice(known, args.limit))
        candidates, documents = _candidates(collection, qrels, args.depth)
        if not candidates:
            raise BadEvaluation(f"{collection.name} {args.split}: BM25 finds no candidate of a judged query")
        gains = [{max(0, qrels[query_id].get(each, 0)) for each in ids} for query_id, ids in candidates.items()]
        if max(map(len, gains)) == 1:
            raise BadEvaluation(f"{collection.name} {args.split}: BM25 finds no relevant document beside a worse one")
        return cls(collection, qrels, candidates, documents)

    def questions(self) -> list[Question]:
        """The first questions, for measuring layers."""
        first = {query_id: ids[:CANDIDATES] for query_id, ids in islice(self.candidates.items(), QUERIES)}
        queries = self.collection.queries()
        return [Question(queries[query_id], [self.documents[each] for each in ids]) for query_id, ids in first.items()]


def _compare(args: argparse.Namespace, judgements: _Judgements, exact_layers: Iterable[str]) -> Row:
    def rankings(dtype: DtypeName) -> dict[str, Ranking]:
        model = load_start(args.model)
        model.scorer.exact_layers = frozenset(exact_layers)
        return _rankings(model, judgements, dtype)

    return Row.of(judgements.collection.name, rankings(EXACT), rankings(args.dtype), judgements.qrels)


def _measured(rankings: Mapping[str, Sequence[str]], qrels: Qrels) -> list[float]:
    """nDCG@10 of each query of the qrels."""
    values = measure(rankings, qrels)
    return [values[query_id][MEASURES[0]] for query_id in qrels]


def _candidates(collection: Collection, qrels: Qrels, depth: int) -> tuple[Candidates, dict[str, str]]:
    """The best documents of each query by BM25, and their texts by id; queries without any are left out."""
    documents = documents_of(collection)
    ids, queries = list(documents), collection.queries()
    found = BM25(list(documents.values())).search([queries[query_id] for query_id in qrels], depth)
    best = {query_id: [ids[number] for number in numbers] for query_id, (numbers, _) in zip(qrels, found, strict=True)}
    texts = {each: documents[each] for listed in best.values() for each in listed}
    return {query_id: listed for query_id, listed in best.items() if listed}, texts


def _rankings(model: LoadedModel, judgements: _Judgements, dtype: DtypeName) -> dict[str, Ranking]:
    collection, candidates = judgements.collection, judgements.candidates
    scorer = score_offline(model, Placement(CPU.device, DTYPES[dtype]))
    ranked: Iterator[tuple[str, Ranking]] = rerank(scorer, collection, candidates, judgements.documents)
    return dict(progress(ranked, f"{collection.name} in {dtype}", len(candidates), unit="query"))


def _overlap(one: Ranking, other: Ranking) -> float:
    """The share of the ten best that both rankings have."""
    first, second = ({document_id for document_id, _ in ranking[:TOP]} for ranking in (one, other))
    return len(first & second) / len(first)


def _tau(one: dict[str, float], other: dict[str, float]) -> float:
    """Kendall's tau of two scorings of the same documents; 1 if either has equal scores only."""
    if any(len(set(scores.values())) < 2 for scores in (one, other)):
        return 1.0
    return float(stats.kendalltau([one[each] for each in one], [other[each] for each in one]).statistic)
