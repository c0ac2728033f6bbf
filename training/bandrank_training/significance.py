"""Are two systems different, or equivalent for practical purposes? Paired tests over the queries that both answered.

Schuirmann 1987, A comparison of the two one-sided tests procedure and the power approach for assessing the equivalence
of average bioavailability, Journal of Pharmacokinetics and Biopharmaceutics 15(6).
Holm 1979, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6(2).
"""

import math
import statistics
from collections.abc import Sequence

from scipy import stats


def difference_p(differences: Sequence[float]) -> float:
    """The p of a two-sided paired t test: small if the mean difference is not 0 (Student 1908).

    Equal differences leave no doubt: p is 1 if they are 0, else 0. Raises ValueError for fewer than two.
    """
    mean, error = _mean_and_error(differences)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * _upper_tail(abs(mean) / error, differences)


def equivalence_p(differences: Sequence[float], *, margin: float) -> float:
    """The p of two one-sided paired t tests: small if the mean difference lies within +-margin (Schuirmann 1987).

    It is the larger p of the two tests: that the mean is above -margin, and that it is below margin. Equal differences
    leave no doubt: p is 0 within the margin, 1 at it or beyond. Raises ValueError for fewer than two differences, or
    for a margin that is not positive.
    """
    if not margin > 0:
        raise ValueError(f"margin must be positive, got {margin}")
    mean, error = _mean_and_error(differences)
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    return max(_upper_tail((margin + mean) / error, differences), _upper_tail((margin - mean) / error, differences))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p values for multiple comparisons (Holm 1979); returns them in the order given. The smallest of m is
    multiplied by m, the next by m - 1 and so on; they keep their rank order, and none exceeds 1.
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def _mean_and_error(differences: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, which is exactly 0 for equal differences: `statistics` computes in fractions."""
    if len(differences) < 2:
        raise ValueError(f"a paired test needs at least 2 queries, got {len(differences)}")
    if not all(map(math.isfinite, differences)):
        raise ValueError("a paired test needs finite differences")
    return statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def _upper_tail(t: float, differences: Sequence[float]) -> float:
    """The probability of a larger Student's t, with one degree of freedom fewer than there are differences."""
    return float(stats.t.sf(t, len(differences) - 1))
