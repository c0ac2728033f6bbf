"""Measures of rankings, computed by `ir_measures` (MacAvaney, Macdonald and Ounis 2022)."""

from collections.abc import Mapping, Sequence

import ir_measures
from ir_measures import RR, Success, nDCG

from bandrank_training.collection import Qrels

MEASURES = ("nDCG@10", "MRR@10", "R@1")
DEPTH = 10  # the measures ignore lower ranks

Values = dict[str, dict[str, float]]  # by query and measure


def judged(qrels: Qrels, min_relevance: int) -> Qrels:
    """The judgements of the queries that have a document of at least this relevance, for a ranking to find."""
    return {
        query_id: relevances
        for query_id, relevances in qrels.items()
        if any(relevance >= min_relevance for relevance in relevances.values())
    }


def measure(rankings: Mapping[str, Sequence[str]], qrels: Qrels, *, min_relevance: int = 1) -> Values:
    """The measures of every query of the qrels; a query without a ranking gets 0.

    nDCG@10: gains are the relevances, the discount is log2(rank + 1), as in trec_eval. The ideal ranking consists of
    all judged documents, even those that were never candidates.
    MRR@10 and R@1: documents of at least `min_relevance` are relevant. R@1 is 1 if the first document is, else 0; with
    one relevant document among 100 candidates it is the "R@1 of 100" of dialogue papers. TREC and ir_measures call this
    Success@1; their R@1 divides by the number of relevant documents.
    """
    named = dict(zip(MEASURES, (nDCG @ 10, RR(rel=min_relevance) @ 10, Success(rel=min_relevance) @ 1), strict=True))
    names = {measure: name for name, measure in named.items()}
    # Ranks instead of scores: tools break ties by document id, and trec_eval keeps only 32 bits.
    run = {
        query_id: {document_id: float(-rank) for rank, document_id in enumerate(ranking[:DEPTH])}
        for query_id, ranking in rankings.items()
        if query_id in qrels and ranking
    }
    # pytrec_eval ends the process where all judgements of a query are below -1; they count as 0.
    known = {query_id: {each: max(0, label) for each, label in labels.items()} for query_id, labels in qrels.items()}
    values: Values = {query_id: dict.fromkeys(MEASURES, 0.0) for query_id in qrels}
    for metric in ir_measures.iter_calc(list(named.values()), known, run):
        values[metric.query_id][names[metric.measure]] = float(metric.value)
    return values


def means(values: Values) -> dict[str, float]:
    """The mean of each measure over all queries."""
    return {name: sum(each[name] for each in values.values()) / len(values) for name in MEASURES}
