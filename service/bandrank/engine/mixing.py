"""Mixes the scores of a search's first stage, which candidates came with, into a ranking.

A convex combination of min-max normalised scores (Bruch, Gai and Ingber 2023, "An Analysis of Fusion Functions for
Hybrid Retrieval", section 4), which keeps distances that a fusion of ranks throws away. With r the ranking's scores and
f the first stage's, both over the candidates of the request, the paper's

    (1 - w) * (r - min r) / (max r - min r)  +  w * (f - min f) / (max f - min f)

is stretched by (max r - min r) and moved by min r. That changes no order and keeps the ranking's range of scores: a
weight of 0 changes nothing at all, and the sigmoid of a mixed score means what it did.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bandrank.engine.ranking import Ranking

Float64s = npt.NDArray[np.float64]


def mix(ranking: Ranking, first_stage: Mapping[int, float], weight: float) -> Ranking:
    """Orders a ranking by its own scores mixed with those of the first stage.

    first_stage: finite scores by candidate index; a candidate without one counts as the lowest, as the first stage did
    not find it.  weight: the weight of the first stage, from 0 to 1.
    Ties go to the better score of the first stage, so that a weight of 1 gives its order even where the ranking's
    scores are all equal; candidates that still tie stay in the order of the ranking.
    """
    if not weight or not first_stage or not ranking.candidates:
        return ranking
    lowest = min(first_stage.values())
    first = np.array([first_stage.get(candidate.index, lowest) for candidate in ranking.candidates], np.float64)
    own = np.array([candidate.score for candidate in ranking.candidates], np.float64)
    stretched = own.min() + (own.max() - own.min()) * _normalised(first)
    mixed = (1 - weight) * own + weight * stretched
    order = np.lexsort((-first, -mixed))
    candidates = [replace(ranking.candidates[place], score=float(mixed[place])) for place in order]
    return replace(ranking, candidates=candidates)


def _normalised(scores: Float64s) -> Float64s:
    """Scores scaled to between 0 and 1; all 0 if they are equal."""
    scores = scores / (np.abs(scores).max() or 1.0)  # so that no difference overflows
    lowest, highest = scores.min(), scores.max()
    normalised: Float64s = (scores - lowest) / (highest - lowest or 1.0)
    return normalised
