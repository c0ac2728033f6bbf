"""Tests of difference and equivalence: against closed forms, scipy's own tests, and their promised error rate."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bandrank_training.significance import difference_p, equivalence_p, holm

MARGIN = 0.02
# With two queries t has one degree of freedom, whose tail has a closed form (Cauchy): 1/2 - atan(t) / pi.
TWO = [0.0, 0.01]  # mean 0.005, standard error 0.005

noise = st.lists(st.floats(-1e-4, 1e-4), min_size=2, max_size=40)


def cauchy_tail(t: float) -> float:
    """P(T > t) with one degree of freedom."""
    return 0.5 - math.atan(t) / math.pi


def test_difference_by_hand() -> None:
    """Here t = 0.005 / 0.005 = 1, and the test is two-sided."""
    assert difference_p(TWO) == pytest.approx(2 * cauchy_tail(1))
    assert difference_p(TWO) == pytest.approx(0.5)


def test_equivalence_by_hand() -> None:
    """Here t = (0.02 - 0.005) / 0.005 = 3 from above; from below it is 5, whose p is smaller."""
    assert equivalence_p(TWO, margin=MARGIN) == pytest.approx(cauchy_tail(3))
    assert equivalence_p([-each for each in TWO], margin=MARGIN) == pytest.approx(cauchy_tail(3))


def test_equivalence_at_the_table_s_quantile() -> None:
    """A t of 2.353 with 3 degrees of freedom is p = 0.05 in any printed table."""
    spread = [-0.03, -0.01, 0.01, 0.03]  # standard error sqrt(0.002 / 3 / 4)
    error = math.sqrt(0.002 / 3 / 4)

    assert equivalence_p(spread, margin=2.353363 * error) == pytest.approx(0.05, abs=1e-6)


def test_scipy_agrees() -> None:
    rng = random.Random(3)
    for _ in range(10):
        center = rng.uniform(-0.05, 0.05)
        differences = [rng.gauss(center, 0.1) for _ in range(30)]
        above = stats.ttest_1samp(differences, -MARGIN, alternative="greater").pvalue
        below = stats.ttest_1samp(differences, MARGIN, alternative="less").pvalue

        assert equivalence_p(differences, margin=MARGIN) == pytest.approx(max(above, below))
        assert difference_p(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)


@given(noise=noise, mean=st.floats(0.03, 1), sign=st.sampled_from([-1, 1]))
def test_equivalence_is_never_claimed_far_outside(noise: list[float], mean: float, sign: int) -> None:
    """However certain a mean outside the margin is, it is not equivalent, and the difference is significant."""
    differences = [sign * mean + each for each in noise]

    assert equivalence_p(differences, margin=MARGIN) > 0.5
    assert difference_p(differences) < 0.05


@given(noise=noise, mean=st.floats(-0.01, 0.01))
def test_equivalence_is_always_claimed_well_inside(noise: list[float], mean: float) -> None:
    """The differences hardly vary, so the mean is certain."""
    assert equivalence_p([mean + each for each in noise], margin=MARGIN) < 0.05


def test_equivalence_is_claimed_wrongly_as_rarely_as_promised() -> None:
    """At the margin itself, which is the worst case, equivalence is claimed in about 5 of 100 draws."""
    rng = random.Random(5)
    draws = [[rng.gauss(MARGIN, 0.03) for _ in range(20)] for _ in range(400)]
    claimed = sum(equivalence_p(draw, margin=MARGIN) < 0.05 for draw in draws)

    # 20 expected; three standard deviations of a binomial are 13.
    assert 7 <= claimed <= 33


@pytest.mark.parametrize(
    ("difference", "equivalence", "different"),
    [(0.0, 0.0, 1.0), (0.01, 0.0, 0.0), (-0.01, 0.0, 0.0), (0.02, 1.0, 0.0), (0.1, 1.0, 0.0), (-0.1, 1.0, 0.0)],
)
@pytest.mark.parametrize("count", [2, 3, 300])
def test_equal_differences_leave_no_doubt(difference: float, equivalence: float, different: float, count: int) -> None:
    """Identical systems are equivalent with p = 0; the margin itself is outside."""
    assert equivalence_p([difference] * count, margin=MARGIN) == equivalence
    assert difference_p([difference] * count) == different


@pytest.mark.parametrize("least", [1e-17, 1e-200, 5e-324])
def test_differences_that_hardly_differ_leave_hardly_a_doubt(least: float) -> None:
    """Nothing overflows or warns, however small the variance is."""
    assert equivalence_p([0.0, least] * 50, margin=MARGIN) == 0.0
    assert equivalence_p([0.1, 0.1 + least], margin=MARGIN) == 1.0
    assert difference_p([0.1, 0.1 + least]) < 1e-15


@pytest.mark.parametrize("differences", [[], [0.1]])
def test_too_few_queries_are_refused(differences: list[float]) -> None:
    """One query has no spread."""
    with pytest.raises(ValueError, match=f"needs at least 2 queries, got {len(differences)}"):
        equivalence_p(differences, margin=MARGIN)
    with pytest.raises(ValueError, match=f"needs at least 2 queries, got {len(differences)}"):
        difference_p(differences)


def test_what_is_no_number_is_refused() -> None:
    """Otherwise p would be NaN, which is below no threshold."""
    with pytest.raises(ValueError, match="finite"):
        difference_p([0.1, math.nan])
    with pytest.raises(ValueError, match=r"margin must be positive, got -0.02"):
        equivalence_p(TWO, margin=-0.02)


def test_holm_by_hand() -> None:
    """The values are 0.005 * 4, 0.01 * 3 and 0.03 * 2; 0.04 * 1 is less than the last of these, and is raised to it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order(p_values: list[float]) -> None:
    """No p gets smaller, passes 1 or Bonferroni's value, or overtakes one that was larger."""
    corrected = holm(p_values)

    assert all(
        p <= new <= min(1, p * len(p_values)) or new == p == 0 for p, new in zip(p_values, corrected, strict=True)
    )
    by_p = [new for _, new in sorted(zip(p_values, corrected, strict=True))]
    assert by_p == sorted(by_p)
