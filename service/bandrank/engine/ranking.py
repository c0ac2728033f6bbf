"""Runs a plan, each stage over the survivors of the previous one, and merges the stages' scores into one ranking."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bandrank.engine.options import Options
from bandrank.engine.passages import BestPassage
from bandrank.engine.policy import Plan, Role
from bandrank.engine.reports import StageReport
from bandrank.engine.text_scorer import AnyTextScorer
from bandrank.engine.tickets import Ticket
from bandrank.errors import InputTooLarge, Overloaded


@dataclass(slots=True)  # not frozen, which would make a thousand of them three times as slow
class RankedCandidate:
    """A candidate's index in the request, its raw score (higher is better), and the stage that gave the score."""

    index: int
    score: float
    stage: str


@dataclass(frozen=True)
class Ranking:
    """Candidates from best to worst, and what the answer cost.

    strategy: the strategy that was used.  reports: one for each stage of each query, in the order in which they ran.
    bounded: whether the budget or the load could have cut a stage short.  degraded: whether one of them did.
    passages: the best one by candidate index, if asked for and if the stage that gave the score reads passages.
    """

    candidates: list[RankedCandidate]
    strategy: str
    reports: list[StageReport]
    bounded: bool
    degraded: bool
    passages: Mapping[int, BestPassage] = field(default_factory=dict)

    @property
    def pooled(self) -> bool:
        """Whether scores of a stage are of the pooled form."""
        return any(report.pooled for report in self.reports)

    @property
    def num_tokens(self) -> int:
        """The number of token ids over all stages: each counts the query once, and every candidate that it scored."""
        return sum(report.num_tokens for report in self.reports)


@dataclass(frozen=True)
class StageScores:
    """A stage's scores. indices: the scored candidates' indices in the request.  scores: one for each index."""

    stage: str
    indices: Sequence[int]
    scores: Sequence[float]


@dataclass(frozen=True)
class Stage:
    """A scorer and its role in a model."""

    role: Role
    scorer: AnyTextScorer


async def run_plan(
    plan: Plan,
    stages: Sequence[Stage],
    query: str,
    texts: Sequence[str],
    *,
    ticket: Ticket,
    options: Options,
) -> Ranking:
    """Ranks candidate texts by the plan's steps.

    ticket: the request's.  options: for each stage; a bounded plan answers with the scores that it has at `answer_by`,
    which other plans ignore.
    Raises what `TextScorer.score` raises; a bounded plan raises Overloaded and InputTooLarge for its first step alone.
    """
    layers: list[StageScores] = []
    reports: list[StageReport] = []
    best: dict[int, BestPassage] = {}
    degraded = False
    survivors: Sequence[int] = range(len(texts))
    for step in plan.steps:
        stage = stages[step.stage]
        cut = plan.bounded and bool(layers)
        if cut:  # the candidates left out should be the worst
            survivors = [layers[-1].indices[position] for position in best_first(layers[-1].scores)]
        survivors = survivors[: step.depth]
        asked = (stage.role.name, query, [texts[index] for index in survivors])
        of_step = options if cut else replace(options, answer_by=math.inf)
        found: list[BestPassage] = []
        try:
            if options.best_passages and stage.scorer.reads_passages:
                scores, report, found = await stage.scorer.score_passages(*asked, ticket=ticket, options=of_step)
            else:
                scores, report = await stage.scorer.score(*asked, ticket=ticket, options=of_step)
        except (Overloaded, InputTooLarge):
            if not cut:
                raise
            degraded = True
            break
        reports.append(report)
        degraded |= len(scores) < len(survivors)
        survivors = survivors[: len(scores)]
        if options.best_passages:
            for index in survivors:
                best.pop(index, None)  # from an earlier stage, whose score is replaced
            best |= zip(survivors, found, strict=False)
        if stage.role.weight is not None and layers:
            before = dict(zip(layers[-1].indices, layers[-1].scores, strict=True))
            scores = [score + stage.role.weight * before[index] for score, index in zip(scores, survivors, strict=True)]
        layers.append(StageScores(stage.role.name, survivors, scores))
        if not scores:
            break
    return Ranking(merge(layers), plan.strategy, reports, plan.bounded, degraded, best)


def join(rankings: Sequence[Ranking]) -> Ranking:
    """Joins rankings whose scores are on one scale into one; ties are in the order of their indices."""
    candidates = [candidate for ranking in rankings for candidate in ranking.candidates]
    candidates.sort(key=lambda candidate: (-candidate.score, candidate.index))
    return Ranking(
        candidates,
        rankings[0].strategy,
        [report for ranking in rankings for report in ranking.reports],
        bounded=any(ranking.bounded for ranking in rankings),
        degraded=any(ranking.degraded for ranking in rankings),
        passages={index: passage for ranking in rankings for index, passage in ranking.passages.items()},
    )


def best_first(scores: Sequence[float]) -> list[int]:
    """Indices of the scores from the best to the worst, ties in the order given."""
    order: list[int] = np.argsort(-np.asarray(scores, np.float64), kind="stable").tolist()
    return order


def merge(layers: Sequence[StageScores]) -> list[RankedCandidate]:
    """Merges the scores of stages, each of which scored some of the candidates of the previous one.

    First come the last stage's candidates by its scores, ties in the order of the request, then the others by the
    previous stage's, and so on. The stages' scales are unrelated, and clients sort by score. So a previous stage's
    scores are shifted until the best of them equals the worst score above, which keeps their order and their
    differences.
    """
    ranking: list[RankedCandidate] = []
    for layer in reversed(layers):
        seen = {candidate.index for candidate in ranking}
        order: list[int] = np.lexsort((np.asarray(layer.indices), -np.asarray(layer.scores, np.float64))).tolist()
        rest = [position for position in order if layer.indices[position] not in seen]
        shift = ranking[-1].score - layer.scores[rest[0]] if ranking and rest else 0.0
        ranking += [RankedCandidate(layer.indices[i], layer.scores[i] + shift, layer.stage) for i in rest]
    return ranking
