"""Candidates to re-rank: a first stage's run, judged pools, or candidate lists. They keep the first stage's order."""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bandrank_training.collection import BadCollection, Qrels, numbered_lines, read_run

Ranking = list[tuple[str, float]]  # document ids with scores, best first
Candidates = dict[str, list[str]]  # document ids by query


def best_of(scores: npt.NDArray[np.float32], most: int) -> npt.NDArray[np.int64]:
    """The indices of the highest scores, at most `most`, highest first; of equals, the first. With numpy's argpartition
    it would depend on the processor which of them are taken.
    """
    most = min(most, len(scores))
    found = np.flatnonzero(scores >= np.partition(scores, -most)[-most])
    return found[np.argsort(-scores[found], kind="stable")][:most]


def ranked(ids: Sequence[str], scores: npt.ArrayLike) -> Ranking:
    """Sorts candidates by their scores, best first. Ties keep the order given, as in the service."""
    values = np.asarray(scores, np.float64)
    return [(ids[index], float(values[index])) for index in np.argsort(-values, kind="stable")]


def first_stage(path: Path, depth: int) -> dict[str, Ranking]:
    """The `depth` best documents of each query of a TREC run file; ties keep its order. Raises BadCollection."""
    run = read_run(path)
    return {query_id: sorted(scores.items(), key=lambda scored: -scored[1])[:depth] for query_id, scores in run.items()}


def ids_of(rankings: Mapping[str, Ranking]) -> Candidates:
    """The documents of each ranking, without their scores."""
    return {query_id: [document_id for document_id, _ in ranking] for query_id, ranking in rankings.items()}


def pools(qrels: Qrels) -> Candidates:
    """All judged documents of each query, by id: files often list relevant ones first, and ties keep their order."""
    return {query_id: sorted(relevances) for query_id, relevances in qrels.items()}


def read_candidates(path: Path, queries: Container[str]) -> Candidates:
    """Reads the candidate lists of these queries from a file, plain or .gz. A line has a query id and the ids of its
    candidates, separated by spaces or tabs, and no other columns. Lines of other queries are skipped, as is a header.
    Raises BadCollection.
    """
    lists: Candidates = {}
    for number, line in numbered_lines(path):
        query_id, *candidates = line.split()
        if query_id not in queries:
            continue
        if query_id in lists:
            raise BadCollection(f"{path}, line {number}: query {query_id} is there twice")
        if len(set(candidates)) < len(candidates):
            raise BadCollection(f"{path}, line {number}: query {query_id} has a candidate twice")
        lists[query_id] = candidates
    return lists
