"""evaluate: re-ranks the candidates of a collection's queries, and measures the rankings against all judgements."""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from bandrank_training.arguments import positive
from bandrank_training.candidates import Candidates, Ranking, first_stage, ids_of, pools, ranked, read_candidates
from bandrank_training.collection import BadCollection, Collection, Qrels, documents_of, open_collection
from bandrank_training.contents import digest, of_model
from bandrank_training.measures import judged, means, measure
from bandrank_training.placement import Placement
from bandrank_training.progress import progress
from bandrank_training.results import BadEvaluation, Benchmark, Evaluation, read_evaluation, write_run
from bandrank_training.scoring import OfflineScorer, Question, score_offline
from bandrank_training.start import load_start

FIRST_STAGE = "run"  # the MODEL that keeps a run's order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, a hub id, a shipped name, or `run` to measure --run as it is"
    )
    parser.add_argument("collection", metavar="COLLECTION", help="a folder in BEIR layout, or ir_datasets:ID")
    parser.add_argument("--split", default="test", help="qrels/SPLIT.tsv (default: test)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, metavar="FILE", help="re-rank the candidates in a TREC run file")
    source.add_argument("--pool", action="store_true", help="re-rank the judged documents of each query")
    source.add_argument("--candidates", type=Path, metavar="FILE", help="re-rank lists: a query id and candidate ids")
    parser.add_argument("--depth", type=positive, default=100, help="the most candidates in a run (default: 100)")
    parser.add_argument(
        "--min-relevance",
        type=positive,
        default=1,
        help="the least relevance of a hit, for MRR and R@1; queries without a hit are left out (default: 1)",
    )
    parser.add_argument(
        "--pooled", action="store_true", help="words also count by how rare they are among a query's candidates"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N queries")
    parser.add_argument("--tag", help="the system's name in the results (default: the last part of MODEL)")
    Placement.add_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("evaluations"), help="a folder (default: evaluations)")


def run(args: argparse.Namespace) -> int:
    """Writes <collection>.<split>.<source>.<tag>.{trec,json} and prints the means. Raises BadCollection, BadCheckpoint,
    BadEvaluation.
    """
    if args.model == FIRST_STAGE and not args.run:
        raise BadEvaluation("`run` is the order of a run file; it needs --run FILE")
    if args.model == FIRST_STAGE and args.pooled:
        raise BadEvaluation("run has no lexical evidence, and so no pooled form")
    tag = re.sub(r"[\s/]+", "-", args.tag or _short_name(args))
    collection = open_collection(args.collection)
    qrels = dict(list(judged(collection.qrels(args.split), args.min_relevance).items())[: args.limit])
    if not qrels:
        raise BadEvaluation(
            f"{collection.name} {args.split}: no query has a document of relevance {args.min_relevance}"
        )
    by_first_stage = first_stage(args.run, args.depth) if args.run else {}
    candidates, documents = _candidates(args, collection, qrels, by_first_stage)
    model = None if args.model == FIRST_STAGE else load_start(args.model)
    digests = (digest([json.dumps(each, sort_keys=True)]) for each in (qrels, candidates))
    benchmark = Benchmark(collection.name, args.split, _source(args), args.min_relevance, *digests)
    weights = "" if model is None else of_model(model) + (" pooled" if args.pooled else "")
    kind = "pool" if args.pool else "run" if args.run else "candidates"
    stem = f"{collection.name}.{args.split}.{kind}.{tag}"
    dtype = "" if model is None else args.dtype
    _check_same(args.out / f"{stem}.json", benchmark, weights, dtype)
    args.out.mkdir(parents=True, exist_ok=True)  # before hours of scoring, in case it cannot be made
    if model is None:
        rankings = {query_id: by_first_stage[query_id] for query_id in candidates}
    else:
        found = rerank(score_offline(model, Placement.of(args), pooled=args.pooled), collection, candidates, documents)
        rankings = dict(progress(found, stem, len(candidates), unit="query"))
    values = measure(ids_of(rankings), qrels, min_relevance=args.min_relevance)
    write_run(args.out / f"{stem}.trec", rankings, tag=tag)
    asked = Path(args.model).name if Path(args.model).is_absolute() else args.model
    Evaluation(tag, benchmark, values, asked, weights, dtype).save(args.out / f"{stem}.json")
    figures = ", ".join(f"{name} {mean:.4f}" for name, mean in means(values).items())
    without = f", {lacking} of them without candidates" if (lacking := len(qrels) - len(rankings)) else ""
    print(f"{tag} on {benchmark}: {figures} ({len(qrels)} queries{without})")  # noqa: T201 - the result
    if alike := sum(_all_hits(ranking, qrels[query_id], args.min_relevance) for query_id, ranking in rankings.items()):
        said = f"all candidates of {alike} of {len(rankings)} queries are relevant: any order puts a relevant one first"
        print(said, file=sys.stderr)  # noqa: T201
    return 0


def rerank(
    scorer: OfflineScorer, collection: Collection, candidates: Candidates, documents: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Ranking]]:
    """Yields each query with its candidates, best first, as `ranked` sorts them.

    documents: the texts of all candidates by id; None to read them from the collection.
    Raises BadCollection for a query or candidate that the collection lacks, and whatever `OfflineScorer.score` raises.
    """
    queries = collection.queries()
    if missing := [query_id for query_id in candidates if query_id not in queries]:
        raise BadCollection(f"{collection.name} lacks the texts of {len(missing)} queries, the first is {missing[0]}")
    named = {document_id for listed in candidates.values() for document_id in listed}
    if documents is None:
        documents = documents_of(collection, named)
    if lost := sorted(named - documents.keys()):
        raise BadCollection(f"{collection.name} lacks {len(lost)} of {len(named)} candidates, the first is {lost[0]}")
    questions = (Question(queries[query_id], [documents[each] for each in ids]) for query_id, ids in candidates.items())
    for (query_id, ids), scores in zip(candidates.items(), scorer.score(questions), strict=True):
        yield query_id, ranked(ids, scores)


def _all_hits(ranking: Ranking, labels: Mapping[str, int], min_relevance: int) -> bool:
    return all(labels.get(document_id, 0) >= min_relevance for document_id, _ in ranking)


def _candidates(
    args: argparse.Namespace, collection: Collection, qrels: Qrels, by_first_stage: Mapping[str, Ranking]
) -> tuple[Candidates, dict[str, str] | None]:
    """The candidates of the queries that have some, and their texts if it has read them. Raises BadEvaluation."""
    documents = None
    if args.pool:
        listed, documents = _with_texts(pools(qrels), collection)
    elif args.candidates:
        listed = read_candidates(args.candidates, qrels)
    else:
        listed = ids_of(by_first_stage)
    candidates = {query_id: listed[query_id] for query_id in qrels if listed.get(query_id)}
    if not candidates:
        said = f"{args.run or args.candidates or collection.name} has no candidates of a query of {args.split}"
        raise BadEvaluation(f"{said}; the first that was judged has the id {next(iter(qrels))!r}")
    return candidates, documents


def _with_texts(listed: Candidates, collection: Collection) -> tuple[Candidates, dict[str, str]]:
    """Drops documents that the collection lacks, which count as not found, with a warning. Adds the others' texts."""
    named = {document_id for ids in listed.values() for document_id in ids}
    known = documents_of(collection, named)
    if lost := sorted(named - known.keys()):
        said = f"{len(lost)} of {len(named)} judged documents are not in the corpus, the first is {lost[0]}"
        print(f"{collection.name}: {said}; they are not ranked, and count as not found", file=sys.stderr)  # noqa: T201
    return {query_id: [each for each in ids if each in known] for query_id, ids in listed.items()}, known


def _check_same(path: Path, benchmark: Benchmark, weights: str, dtype: str) -> None:
    """Raises BadEvaluation rather than overwrite the results of another benchmark, model or dtype."""
    if not path.exists():
        return
    there = read_evaluation(path)
    if differing := there.benchmark.differing(benchmark) if there.benchmark == benchmark else there.benchmark:
        raise BadEvaluation(f"{path} has results of {differing}; choose another --out, or a --tag")
    if there.weights != weights:
        raise BadEvaluation(f"{path} has results of another model, or of other weights of it; choose another --tag")
    if there.dtype != dtype:
        raise BadEvaluation(f"{path} has results in {there.dtype}, not in {dtype}; choose another --tag")


def _source(args: argparse.Namespace) -> str:
    """Describes where the candidates come from; `compare` compares only evaluations with the same description."""
    source = f"{args.run.name} top {args.depth}" if args.run else "judged pools" if args.pool else args.candidates.name
    return f"{source}, first {args.limit} queries" if args.limit else source


def _short_name(args: argparse.Namespace) -> str:
    """The default tag: "bm25" for `run --run bm25.test.trec.gz`, "b" for the folder or hub id a/b."""
    name = args.run.name.split(".")[0] if args.model == FIRST_STAGE else Path(args.model).resolve().name
    return f"{name}-pooled" if args.pooled else name
