"""Which stages a request runs, and how their scores make one ranking."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bandrank.engine.stage import StageName

Strategy = Literal["auto", "fast", "accurate", "cascade"]


@dataclass(slots=True)  # not frozen: that makes a thousand of them three times as dear
class RankedCandidate:
    """A candidate's place in the request, its raw score (higher is better), and the stage that gave it."""

    index: int
    score: float
    stage: StageName


def best_first(scores: Sequence[float]) -> list[int]:
    """Places from the best score to the worst, ties in the order of the request."""
    order: list[int] = np.argsort(-np.asarray(scores, np.float64), kind="stable").tolist()
    return order


def rank(scores: Sequence[float], stage: StageName) -> list[RankedCandidate]:
    """The ranking by one stage that saw every candidate."""
    return [RankedCandidate(index, scores[index], stage) for index in best_first(scores)]


def merge(fast: Sequence[float], survivors: Sequence[int], accurate: Sequence[float]) -> list[RankedCandidate]:
    """The ranking by two stages: the candidates that the second saw by its scores, then the others in order of the
    first.

    survivors: places of the candidates sent to the second stage, which scored the first len(accurate) of them. The two
    scales have nothing to do with each other, and clients sort by score: the fast scores of the others are shifted so
    that the best of them equals the worst accurate score, which keeps both their order and their distances.
    """
    if not accurate:
        return rank(fast, "fast")
    seen = dict(zip(survivors, accurate, strict=False))
    ranking = [RankedCandidate(i, seen[i], "accurate") for i in sorted(seen, key=lambda place: (-seen[place], place))]
    rest = [index for index in best_first(fast) if index not in seen]
    if rest:
        shift = min(accurate) - fast[rest[0]]
        ranking += [RankedCandidate(index, fast[index] + shift, "fast") for index in rest]
    return ranking
