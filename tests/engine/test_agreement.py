"""How far two rankings agree, compared with scipy's numbers and with numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from bandrank.engine.agreement import agreement, kendall_tau
from bandrank.engine.ranking import RankedCandidate

PAIRS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=200)  # with many ties


def ranking(*scores: float) -> list[RankedCandidate]:
    """Ranks candidates that have these scores; a candidate's index is its place in the arguments."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [RankedCandidate(index, scores[index], "accurate") for index in order]


@given(pairs=PAIRS)
def test_tau_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    """Ties in either scoring, or in both, count as in tau-b; where scipy gives NaN, our tau is None."""
    x, y = np.array(pairs, np.float64).T
    actual = kendall_tau(x, y)
    expected = kendalltau(x, y).statistic

    assert (math.nan if actual is None else actual) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("seed", range(3))
def test_tau_of_many_scores_is_that_of_scipy(seed: int) -> None:
    """A thousand scores are enough that the sort merges several parts."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=1000)
    y = np.round(x + rng.normal(size=1000), 1)

    assert kendall_tau(x, y) == pytest.approx(kendalltau(x, y).statistic, abs=1e-12)


@given(scores=st.lists(st.integers(0, 9), min_size=2, max_size=100).filter(lambda scores: len(set(scores)) > 1))
def test_a_ranking_agrees_with_itself_exactly(scores: list[int]) -> None:
    """Rounding never moves tau away from 1, or from -1 for the reverse."""
    values = np.array(scores, np.float64)

    assert (kendall_tau(values, values), kendall_tau(values, -values)) == (1.0, -1.0)


def test_tau_is_undefined_without_an_order() -> None:
    """A single candidate has no order, and neither have candidates that all tie in one of the scorings."""
    some, none = np.array([1.0, 2.0, 3.0]), np.zeros(3)

    assert (kendall_tau(some[:1], some[:1]), kendall_tau(some, none), kendall_tau(none, some)) == (None, None, None)


def test_overlap_counts_who_is_among_the_first() -> None:
    """The order within the first k does not matter, and a cutoff that includes every candidate is left out."""
    one = ranking(9, 8, 7, 6, 5, 4)
    other = ranking(8, 9, 1, 2, 7, 3)

    assert agreement(one, other, cutoffs=(1, 2, 3, 5, 6, 10)).overlaps == {1: 0.0, 2: 1.0, 3: 2 / 3, 5: 0.8}


def test_drift_is_of_the_scores_that_clients_see() -> None:
    """Clients see sigmoids: here 0.5 and 0.75 are swapped, and huge scores stay 0 or 1 without overflow."""
    third = math.log(3)
    agreed = agreement(ranking(0.0, third, 1e6, -1e6), ranking(third, 0.0, 2e6, -2e6), cutoffs=())
    shifted = agreement(ranking(0.0, 0.0), ranking(third, 0.0), cutoffs=())

    assert (agreed.drift, agreed.shift) == pytest.approx((0.125, 0.0))
    assert (shifted.drift, shifted.shift) == pytest.approx((0.125, 0.125))
