"""Properties of a ranking into which the scores of the search's first stage are mixed."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandrank.engine.mixing import mix
from bandrank.engine.ranking import RankedCandidate, Ranking, best_first

OWN = st.floats(-1e6, 1e6, width=32)
ANY = st.floats(allow_nan=False, allow_infinity=False)
WEIGHTS = st.floats(0, 1)
PAIRS = st.lists(st.tuples(OWN, st.none() | ANY), min_size=1, max_size=12)


def ranking_of(scores: Sequence[float]) -> Ranking:
    """Ranks candidates that have these scores; a candidate's index is its place in the list."""
    candidates = [RankedCandidate(index, scores[index], "accurate") for index in best_first(scores)]
    return Ranking(candidates, "accurate", [], bounded=False, degraded=False)


def mixed(pairs: Sequence[tuple[float, float | None]], weight: float) -> Ranking:
    """Mixes pairs of a candidate's own score and its score from the first stage."""
    first = {index: score for index, (_, score) in enumerate(pairs) if score is not None}
    return mix(ranking_of([own for own, _ in pairs]), first, weight)


def order(ranking: Ranking) -> list[int]:
    return [candidate.index for candidate in ranking.candidates]


def test_a_mixture_worked_out_by_hand() -> None:
    """Own scores range from -1 to 3 and those of the first stage from 10 to 30, which has a quarter of the weight."""
    candidates = mixed([(3.0, 10.0), (1.0, 30.0), (-1.0, 20.0)], 0.25).candidates

    # 0.75 * 3 + 0.25 * -1;  0.75 * 1 + 0.25 * 3;  0.75 * -1 + 0.25 * 1
    assert [(candidate.index, candidate.score) for candidate in candidates] == [(0, 2.0), (1, 1.5), (2, -0.5)]
    assert {candidate.stage for candidate in candidates} == {"accurate"}


@given(PAIRS)
def test_without_a_weight_nothing_changes(pairs: list[tuple[float, float | None]]) -> None:
    assert mixed(pairs, 0.0) == ranking_of([own for own, _ in pairs])


@given(PAIRS.filter(lambda pairs: any(first is not None for _, first in pairs)))
def test_with_all_the_weight_the_order_is_that_of_the_first_stage(pairs: list[tuple[float, float | None]]) -> None:
    """Candidates without a first-stage score come last, and candidates that tie keep the order of their own scores."""
    lowest = min(first for _, first in pairs if first is not None)
    firsts = [lowest if first is None else first for _, first in pairs]
    own = order(ranking_of([score for score, _ in pairs]))

    assert order(mixed(pairs, 1.0)) == sorted(own, key=lambda index: -firsts[index])


@given(PAIRS, WEIGHTS)
def test_scores_stay_finite_and_within_those_of_the_ranking(
    pairs: list[tuple[float, float | None]], weight: float
) -> None:
    """This holds whatever the scale of the first stage, and the candidates are in the order of their mixed scores."""
    scores = [candidate.score for candidate in mixed(pairs, weight).candidates]
    lowest, highest = (pick(own for own, _ in pairs) for pick in (min, max))
    slack = 1e-9 * max(1.0, abs(lowest), abs(highest))

    assert all(math.isfinite(score) and lowest - slack <= score <= highest + slack for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert sorted(order(mixed(pairs, weight))) == list(range(len(pairs)))


@given(PAIRS, WEIGHTS, st.data())
def test_a_better_first_score_never_costs_a_rank(
    pairs: list[tuple[float, float | None]], weight: float, data: st.DataObject
) -> None:
    """The better score stays within the range of the others; a wider range would change every mixed score."""
    firsts = [first for _, first in pairs if first is not None]
    index = data.draw(st.integers(0, len(pairs) - 1))
    own, before = pairs[index]
    others = [first for place, (_, first) in enumerate(pairs) if first is not None and place != index]
    if not others or (before is not None and not min(others) <= before <= max(others)):
        return
    low = min(firsts) if before is None else before
    if low > max(others):
        return
    better = data.draw(st.floats(low, max(others)))
    raised = [(own, better) if place == index else pair for place, pair in enumerate(pairs)]

    assert order(mixed(raised, weight)).index(index) <= order(mixed(pairs, weight)).index(index)


@given(st.lists(st.tuples(OWN, st.integers(-50, 50)), min_size=1, max_size=12), WEIGHTS, st.sampled_from([0.5, 8.0]))
def test_the_scale_of_the_first_stage_does_not_matter(
    pairs: list[tuple[float, int]], weight: float, factor: float
) -> None:
    """BM25 scores and cosines count the same; the numbers are such that rescaling them rounds nothing."""
    moved = [(own, first * factor + 1024) for own, first in pairs]
    scores = {candidate.index: candidate.score for candidate in mixed(pairs, weight).candidates}

    for candidate in mixed(moved, weight).candidates:
        assert candidate.score == pytest.approx(scores[candidate.index], rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_equal_scores_leave_the_order_to_the_other_stage(weight: float) -> None:
    """If the first stage's scores are all equal they change no order; if the ranking's are, the first stage decides."""
    assert order(mixed([(1.0, 5.0), (3.0, 5.0), (2.0, 5.0)], weight)) == [1, 2, 0]
    assert order(mixed([(1.0, 5.0), (1.0, 7.0), (1.0, 6.0)], weight)) == [1, 2, 0]
    assert order(mixed([(1.0, 0.0), (1.0, 0.0)], weight)) == [0, 1]
    assert order(mixed([(1.0, 5e-324), (1.0, 0.0), (0.0, 1e-323)], 1.0)) == [2, 0, 1]


def test_scores_or_candidates_may_be_missing() -> None:
    """Neither a first stage without scores nor a ranking without candidates is an error."""
    ranking = ranking_of([1.0, 2.0])

    assert mix(ranking, {}, 1.0) == ranking
    assert mix(replace(ranking, candidates=[]), {0: 1.0}, 1.0).candidates == []
