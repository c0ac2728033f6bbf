"""Measures of rankings, against values worked out by hand."""

import math

import pytest

from bandrank_training.measures import MEASURES, judged, means, measure

GRADED = {"q": {"a": 2, "b": 1, "c": 1, "d": 0}}
# Ranked b, x, a: 1 / log2(2) + 2 / log2(4) = 2. Ideally a, b, c: 2 / log2(2) + 1 / log2(3) + 1 / log2(4).
GAIN = 2.0
IDEAL = 2 + 1 / math.log2(3) + 0.5


@pytest.mark.parametrize(("min_relevance", "reciprocal_rank", "first"), [(1, 1.0, 1.0), (2, 1 / 3, 0.0)])
def test_measures_worked_out_by_hand(min_relevance: int, reciprocal_rank: float, first: float) -> None:
    """Document c was not ranked but counts in the ideal; `min_relevance` changes MRR and R@1 alone."""
    values = measure({"q": ["b", "x", "a"]}, GRADED, min_relevance=min_relevance)

    assert values["q"] == pytest.approx({"nDCG@10": GAIN / IDEAL, "MRR@10": reciprocal_rank, "R@1": first})


def test_what_comes_after_rank_10_does_not_count() -> None:
    others = [f"x{number}" for number in range(9)]

    assert measure({"q": [*others, "a"]}, {"q": {"a": 1}})["q"] == pytest.approx(
        {"nDCG@10": 1 / math.log2(11), "MRR@10": 0.1, "R@1": 0}
    )
    assert measure({"q": [*others, "y", "a"]}, {"q": {"a": 1}})["q"] == dict.fromkeys(MEASURES, 0.0)


def test_the_order_of_the_ranking_counts_and_not_that_of_ids() -> None:
    ids = ["m", "a", "z", "A", "10", "9"]
    for place, relevant in enumerate(ids):
        assert measure({"q": ids}, {"q": {relevant: 1}})["q"]["MRR@10"] == pytest.approx(1 / (place + 1))


def test_a_query_without_a_ranking_gets_0() -> None:
    """A judged query without a ranking counts in the mean, and an unjudged one does not."""
    values = measure({"q1": ["a"], "q3": ["a"], "q4": []}, {"q1": {"a": 1}, "q2": {"a": 1}, "q4": {"a": 1}})

    assert list(values) == ["q1", "q2", "q4"]
    assert means(values) == pytest.approx(dict.fromkeys(MEASURES, 1 / 3))


def test_judgements_below_0_count_as_0() -> None:
    """TREC marks spam with -2; a query of such judgements alone crashed the process."""
    values = measure({"q1": ["b", "a"], "q2": ["a"]}, {"q1": {"a": 1, "b": -2}, "q2": {"a": -2}})

    assert values["q1"]["nDCG@10"] == pytest.approx(1 / math.log2(3))
    assert set(values["q2"].values()) == {0.0}


def test_queries_with_nothing_to_find_are_left_out() -> None:
    """A query counts only if a document was judged to be at least as relevant as asked for."""
    qrels = {"q1": {"a": 2, "b": 0}, "q2": {"a": 1}, "q3": {"a": 0}, "q4": {"a": -1}}

    assert list(judged(qrels, 1)) == ["q1", "q2"]
    assert judged(qrels, 2) == {"q1": {"a": 2, "b": 0}}
