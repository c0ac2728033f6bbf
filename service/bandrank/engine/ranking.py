"""Runs a plan: each stage over the survivors of the one before; and merges what the stages say into one ranking."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bandrank.engine.policy import Plan, Role
from bandrank.engine.reports import StageReport
from bandrank.engine.text_scorer import AnyTextScorer
from bandrank.errors import InputTooLarge, Overloaded


@dataclass(slots=True)  # not frozen: that makes a thousand of them three times as dear
class RankedCandidate:
    """A candidate by its index in the request, its raw score (higher is better), and the stage that gave the score."""

    index: int
    score: float
    stage: str


@dataclass(frozen=True)
class Ranking:
    """Candidates from best to worst, and what the answer cost.

    strategy: the one that was used.  reports: one a stage, in the order in which they ran.  bounded: whether the budget
    could have cut the answer short.  degraded: the budget or the load left fewer candidates to a stage than planned.
    """

    candidates: list[RankedCandidate]
    strategy: str
    reports: list[StageReport]
    bounded: bool
    degraded: bool

    @property
    def num_tokens(self) -> int:
        """Token ids in all stages: the query once a stage, and every candidate that it scored."""
        return sum(report.num_tokens for report in self.reports)


@dataclass(frozen=True)
class StageScores:
    """What a stage said. indices: of the candidates it scored, in the request.  scores: one each."""

    stage: str
    indices: Sequence[int]
    scores: Sequence[float]


@dataclass(frozen=True)
class Stage:
    """A scorer in its role for a model."""

    role: Role
    scorer: AnyTextScorer


async def run_plan(
    plan: Plan, stages: Sequence[Stage], query: str, texts: Sequence[str], *, deadline: float, answer_by: float
) -> Ranking:
    """The ranking of candidate texts by the plan's steps.

    deadline, answer_by: monotonic seconds; the second is when a bounded plan answers with what it has.
    Raises what `TextScorer.score` raises. A bounded plan raises it for the first step alone, or for a deadline.
    """
    layers: list[StageScores] = []
    reports: list[StageReport] = []
    degraded = False
    survivors: Sequence[int] = range(len(texts))
    for step in plan.steps:
        stage = stages[step.stage]
        cut = plan.bounded and bool(layers)
        if layers and (plan.bounded or step.depth < len(survivors)):  # whatever is left out should be the worst
            survivors = [layers[-1].indices[position] for position in best_first(layers[-1].scores)]
        survivors = survivors[: step.depth]
        try:
            scores, report = await stage.scorer.score(
                stage.role.name,
                query,
                [texts[index] for index in survivors],
                deadline=deadline,
                answer_by=min(answer_by, deadline) if cut else math.inf,
            )
        except (Overloaded, InputTooLarge):
            if not cut:
                raise
            degraded = True
            break
        reports.append(report)
        degraded |= len(scores) < len(survivors)
        survivors = survivors[: len(scores)]
        if stage.role.weight is not None and layers:
            before = dict(zip(layers[-1].indices, layers[-1].scores, strict=True))
            scores = [ours + stage.role.weight * before[index] for ours, index in zip(scores, survivors, strict=True)]
        layers.append(StageScores(stage.role.name, survivors, scores))
        if not scores:
            break
    return Ranking(merge(layers), plan.strategy, reports, plan.bounded, degraded)


def best_first(scores: Sequence[float]) -> list[int]:
    """Positions from the best score to the worst, ties in the order given."""
    order: list[int] = np.argsort(-np.asarray(scores, np.float64), kind="stable").tolist()
    return order


def merge(layers: Sequence[StageScores]) -> list[RankedCandidate]:
    """One ranking of stages that each saw some of the candidates of the one before: those that the last one saw by its
    scores, ties in the order of the request, then the others in the order of the stage before, and so on.

    The scales of two stages have nothing to do with each other, and clients sort by score: the scores of the others are
    shifted so that the best of them equals the worst above, which keeps both their order and their distances.
    """
    ranking: list[RankedCandidate] = []
    for layer in reversed(layers):
        seen = {candidate.index for candidate in ranking}
        order: list[int] = np.lexsort((np.asarray(layer.indices), -np.asarray(layer.scores, np.float64))).tolist()
        rest = [position for position in order if layer.indices[position] not in seen]
        shift = ranking[-1].score - layer.scores[rest[0]] if ranking and rest else 0.0
        ranking += [RankedCandidate(layer.indices[i], layer.scores[i] + shift, layer.stage) for i in rest]
    return ranking
