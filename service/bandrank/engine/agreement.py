"""How far two rankings of the same candidates agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from bandrank.engine.ranking import RankedCandidate

Floats = npt.NDArray[np.float64]

FEW = 64  # up to this many values, comparing all pairs is faster than merging halves


@dataclass(frozen=True)
class Agreement:
    """How far one ranking agrees with another.

    tau: Kendall's tau-b of their scores; None where it is undefined.  overlaps: for each cutoff k, the fraction of one
    ranking's first k candidates that are among the other's first k.  drift, shift: the means over the candidates of
    |other - one| and of other - one, after a sigmoid of each score.
    """

    tau: float | None
    overlaps: dict[int, float]
    drift: float
    shift: float


def agreement(one: Sequence[RankedCandidate], other: Sequence[RankedCandidate], cutoffs: Sequence[int]) -> Agreement:
    """Compares two rankings of the same candidates, of which there is at least one.

    A cutoff that leaves no candidate out is skipped: its overlap would be 1 whatever the rankings are.
    """
    scores, other_scores = _scores(one), _scores(other)
    indices, other_indices = ([candidate.index for candidate in ranking] for ranking in (one, other))
    differences = _sigmoid(other_scores) - _sigmoid(scores)
    return Agreement(
        tau=kendall_tau(scores, other_scores),
        overlaps={k: len({*indices[:k]} & {*other_indices[:k]}) / k for k in cutoffs if k < len(indices)},
        drift=float(np.abs(differences).mean()),
        shift=float(differences.mean()),
    )


def kendall_tau(x: Floats, y: Floats) -> float | None:
    """Kendall's tau-b of two scorings; None if it is undefined, because one of them ties all of its candidates.

    x, y: (n,), the scores of the same candidates.  In O(n log n): sorted by x, the discordant pairs are those that a
    merge sort by y exchanges (Knight 1966, "A Computer Method for Calculating Kendall's Tau with Ungrouped Data").
    """
    order = np.lexsort((y, x))  # among equal x by y, so that pairs tied in x are not exchanged
    pairs = len(x) * (len(x) - 1) // 2
    untied_x, untied_y = pairs - _tied(x), pairs - _tied(y)
    if not untied_x or not untied_y:
        return None
    _, discordant = _sort(y[order])
    untied = untied_x + untied_y - pairs + _tied(x + 1j * y)
    return (untied - 2 * discordant) / sqrt(untied_x * untied_y)


def _tied(values: npt.NDArray[Any]) -> int:
    """The number of pairs of equal values."""
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def _sort(values: Floats) -> tuple[Floats, int]:
    """The sorted values, and how many pairs were out of order."""
    if len(values) <= FEW:
        return np.sort(values), int(np.triu(values[:, None] > values).sum())
    middle = len(values) // 2
    (left, in_left), (right, in_right) = _sort(values[:middle]), _sort(values[middle:])
    across = int((middle - np.searchsorted(left, right, side="right")).sum())
    return np.sort(np.concatenate((left, right)), kind="stable"), in_left + in_right + across


def _scores(ranking: Sequence[RankedCandidate]) -> Floats:
    """The scores in the order of the request."""
    return np.array([candidate.score for candidate in sorted(ranking, key=lambda each: each.index)], np.float64)


def _sigmoid(scores: Floats) -> Floats:
    return 0.5 * (1 + np.tanh(scores / 2))
