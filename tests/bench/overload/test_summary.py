"""How responses become outcomes, and outcomes become rates and percentiles."""

import json
from typing import Any

import pytest

from bandrank_bench.overload.connections import Response
from bandrank_bench.overload.loops import Window, poisson_arrivals, steady_arrivals
from bandrank_bench.overload.outcomes import Exchange, Outcome, judge
from bandrank_bench.overload.processors import Busy
from bandrank_bench.overload.requests import Request
from bandrank_bench.overload.summary import Percentiles, percentile, summarise

IDLE = Busy(0.0, 0.0, 0.0)
RANKING = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.4}]


def outcome_of(status: int, results: Any = None, *, took_s: float = 1.0, **headers: str) -> Outcome:
    """Returns the outcome of a request with two candidates, due at 1 s, sent 0.1 s late, with a limit of 2 s."""
    body = json.dumps({"results": results, "usage": {"total_tokens": 150}}).encode()
    response = Response(1.1, status, headers, body)
    return judge(Exchange(Request(b"", 2), 1.0, 1.1, 1.0 + took_s, response), 2.0)


def test_a_ranking_of_all_candidates_is_an_answer() -> None:
    """Latency and the generator's lateness count from when the request was due."""
    outcome = outcome_of(200, RANKING)

    assert outcome.kind == "answered"
    assert outcome.latency_s == pytest.approx(1.0)
    assert outcome.lateness_s == pytest.approx(0.1)
    assert outcome.tokens == 150


@pytest.mark.parametrize(
    "results",
    [
        None,
        RANKING[:1],
        [RANKING[0], RANKING[0]],
        [RANKING[0], {"index": 2, "relevance_score": 0.4}],
        [RANKING[0], {"index": 0, "relevance_score": 0.91}],
        [RANKING[0], {"index": 0, "relevance_score": float("nan")}],
        [RANKING[0], {"index": 0}],
    ],
)
def test_any_other_ranking_is_wrong(results: Any) -> None:
    assert outcome_of(200, results).kind == "wrong"


def test_an_answer_of_tei_is_a_list() -> None:
    """An answer in the format of TEI has no count of tokens."""
    ranking = [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.4}]
    for answer, kind in ((ranking, "answered"), (ranking[::-1], "wrong")):
        response = Response(1.0, 200, {}, json.dumps(answer).encode())
        assert judge(Exchange(Request(b"", 2), 1.0, 1.0, 2.0, response), 2.0).kind == kind


def test_an_answer_beyond_the_limit_is_late() -> None:
    """A wrong answer stays wrong, however late it is."""
    assert outcome_of(200, RANKING, took_s=2.1).kind == "late"
    assert outcome_of(200, RANKING[:1], took_s=2.1).kind == "wrong"


def test_a_refusal_tells_when_to_come_again() -> None:
    assert outcome_of(429, **{"retry-after": "7"}).retry_after_s == 7
    assert outcome_of(429, **{"retry-after": "7"}).kind == "refused"
    assert outcome_of(429).kind == "wrong"
    assert outcome_of(429, **{"retry-after": "0"}).kind == "wrong"


def test_any_other_status_is_a_failure() -> None:
    assert outcome_of(504).kind == "failed"
    assert judge(Exchange(Request(b"", 2), 1.0, None, 2.0, None), 2.0).kind == "lost"


def test_percentiles_are_nearest_ranks() -> None:
    """Of 1 to 200, 100 values do not exceed 100 and 198 do not exceed 198; of one value, all are that value."""
    values = [float(value) for value in range(1, 201)]

    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (100.0, 198.0, 200.0)
    assert Percentiles.of([0.25]) == Percentiles(1, 250.0, 250.0, 250.0)
    assert Percentiles.of([]) is None


def test_rates_are_those_of_the_window_and_counts_those_of_the_run() -> None:
    """The offered rate counts requests due from 1 to 3 s, the goodput right and timely answers given in that time."""
    outcomes = [
        Outcome("answered", 200, 0.5, 0.9, 0.0, 10, 700),  # before the window
        Outcome("answered", 200, 0.8, 1.4, 0.0, 10, 700),  # due before, answered in it
        Outcome("answered", 200, 1.0, 1.2, 0.001, 30, 2400),
        Outcome("late", 200, 1.5, 2.9, 0.002, 10),
        Outcome("refused", 429, 2.0, 2.004, 0.003, 10, retry_after_s=3),
        Outcome("failed", 504, 2.5, 2.6, 0.004, 10),
        Outcome("answered", 200, 2.9, 3.1, 0.005, 10, 700),  # answered after it
        Outcome("lost", 0, 2.95, 9.0, None, 10),
    ]

    seen = summarise(outcomes, Window(1.0, 3.0), IDLE)

    assert seen.sent == 8
    assert seen.counts == {"answered": 4, "late": 1, "refused": 1, "failed": 1, "lost": 1}
    assert seen.unexpected == 3
    assert (seen.offered, seen.goodput, seen.goodput_candidates) == (3.0, 1.0, 20.0)
    assert seen.admitted is not None
    assert (seen.admitted.count, seen.admitted.p50, seen.admitted.most) == pytest.approx((3, 200.0, 1400.0))
    assert seen.refused is not None
    assert seen.refused.p99 == pytest.approx(4.0)
    assert seen.generator is not None
    assert (seen.generator.count, seen.generator.most) == pytest.approx((5, 5.0))
    assert seen.retry_after_s == {3: 1}
    assert seen.statuses == {504: 1}
    assert seen.tokens == pytest.approx((70 + 80) / 2)


def test_arrivals_depend_on_the_seed_alone() -> None:
    """At twice the rate, the same arrivals come in half the time."""
    once, twice = poisson_arrivals(10.0, 60.0, seed=1), poisson_arrivals(20.0, 30.0, seed=1)

    assert once == poisson_arrivals(10.0, 60.0, seed=1)
    assert once != poisson_arrivals(10.0, 60.0, seed=2)
    assert [moment / 2 for moment in once] == pytest.approx(twice)


def test_arrivals_are_a_poisson_process() -> None:
    """At 10 a second, 6,000 requests come in ten minutes and 1 / e of the gaps exceed the mean, up to 4 deviations."""
    moments = poisson_arrivals(10.0, 600.0, seed=0)
    gaps = [later - earlier for earlier, later in zip([0.0, *moments], moments, strict=False)]

    assert len(moments) == pytest.approx(6000, abs=4 * 6000**0.5)
    assert sum(gap > 0.1 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=4 * (0.368 * 0.632 / 6000) ** 0.5)
    assert moments[-1] < 600


def test_steady_arrivals_have_equal_gaps() -> None:
    assert steady_arrivals(4.0, 1.0) == pytest.approx([0.125, 0.375, 0.625, 0.875])
