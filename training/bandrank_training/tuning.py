"""Tunes numbers of a trained scorer on dev groups: its fusion's weight, and those that turn its scores into logits.

Losses over groups see only differences, so a trained score is a logit up to a constant. With the constant, the sigmoid
of a score is the share of relevant candidates among judged ones with that score, if half of all are relevant (Platt
1999, with the slope left at 1). A similarity, such as a sum of MaxSim or a dot product, is not a logit: it gets a slope
as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bandrank.models.architectures import CrossEncoder, Deformer, MixEncoder
from bandrank.models.architectures.two_towers import LateInteractionScorer
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.scorer import Scorer
from bandrank_training.dev import DevSet
from bandrank_training.errors import BadInput
from bandrank_training.models import rebuilt
from bandrank_training.scoring import OfflineScorer, score_offline

WEIGHTS = (*np.arange(0.0, 2.01, 0.1).round(1).tolist(), 3.0, 5.0)
BISECTIONS, NEWTON_STEPS = 60, 30
RIDGE = 1e-6  # of Newton's steps, in case all scores are equal
BIAS = "head.classifier.bias"


@dataclass(frozen=True)
class Tuned:
    """A tuned model. by_weight: the dev measure of each weight tried.  scale: multiplies all scores, before `shift` is
    added.
    """

    model: LoadedModel
    by_weight: dict[float, float]
    shift: float
    scale: float = 1.0


def tune(model: LoadedModel, dev: DevSet) -> Tuned:
    """Sets the fusion weight that is best on dev (of equals the one nearest to the old) and then the constant; also the
    slope of a similarity, unless it is fused.

    Raises BadInput for a scorer that has no constant or that ranks dev upside down, and BadCheckpoint.
    """
    scores = dev.scores(OfflineScorer.in_training(model))  # unprepared, as it will be saved
    by_weight: dict[float, float] = {}
    if model.fusion is not None:
        fast = dev.scores(score_offline(load_model(model.fusion.scorer)))
        old = model.fusion.weight
        fused = {weight: _fuse(weight, scores, fast) for weight in sorted({*WEIGHTS, old})}
        by_weight = {weight: dev.measure_scores(sums) for weight, sums in fused.items()}
        best = max(fused, key=lambda weight: (by_weight[weight], -abs(weight - old)))
        model, scores = replace(model, fusion=replace(model.fusion, weight=best)), fused[best]
    labels = dev.relevant
    flat = [score for row in scores for score in row]
    has_slope = isinstance(model.scorer, LateInteractionScorer) and model.fusion is None
    scale, constant = platt(flat, labels) if has_slope else (1.0, intercept(flat, labels))
    return Tuned(replace(model, scorer=calibrated(model.scorer, scale, constant)), by_weight, constant, scale)


def intercept(scores: Sequence[float], relevant: Sequence[bool]) -> float:
    """The constant to add to scores so that their sigmoids have a weighted mean of 0.5, with the same total weight for
    relevant and other candidates.
    """
    values, labels = np.asarray(scores), np.asarray(relevant)
    weights = np.where(labels, 0.5 / max(1, labels.sum()), 0.5 / max(1, (~labels).sum()))
    low, high = -values.max() - 50.0, -values.min() + 50.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        mean = weights @ (0.5 * (1 + np.tanh((values + middle) / 2)))
        low, high = (middle, high) if mean < weights.sum() / 2 else (low, middle)
    return float((low + high) / 2)


def platt(scores: Sequence[float], relevant: Sequence[bool]) -> tuple[float, float]:
    """The slope and the constant of a logistic regression of relevance on scores, with the same total weight for
    relevant and other candidates (Platt 1999, with his targets, which keep the slope finite).

    Raises BadInput if relevant candidates have the lower scores.
    """
    values, labels = np.asarray(scores), np.asarray(relevant)
    spread = values.std() or 1.0
    rows = np.stack([(values - values.mean()) / spread, np.ones_like(values)], 1)
    counts = max(1, labels.sum()), max(1, (~labels).sum())
    weights = np.where(labels, 0.5 / counts[0], 0.5 / counts[1])
    targets = np.where(labels, (counts[0] + 1) / (counts[0] + 2), 1 / (counts[1] + 2))
    solution = np.zeros(2)
    for _ in range(NEWTON_STEPS):
        chances = 0.5 * (1 + np.tanh(rows @ solution / 2))
        curvature = (rows * (weights * chances * (1 - chances))[:, None]).T @ rows + RIDGE * np.eye(2)
        solution += np.linalg.solve(curvature, rows.T @ (weights * (targets - chances)) - RIDGE * solution)
    slope, constant = solution[0] / spread, solution[1] - solution[0] * values.mean() / spread
    if slope <= 0:
        raise BadInput("the relevant candidates have the lower scores: there is nothing to calibrate")
    return float(slope), float(constant)


def calibrated(scorer: Scorer, scale: float, constant: float) -> Scorer:
    """A copy of the scorer whose scores are multiplied by `scale` (1 except for a similarity), then shifted by
    `constant`. Raises BadInput for a scorer that has no constant.
    """
    config, weights = scorer.config, scorer.state_dict()
    match scorer:
        case CrossEncoder() | Deformer():
            weights[BIAS] = weights[BIAS] + constant
        case MixEncoder() if config.bi_encoder_weight:
            config = replace(config, bi_encoder_bias=config.bi_encoder_bias + constant)
        case LateInteractionScorer():
            bias = scale * config.score_bias + constant
            config = replace(config, score_scale=scale * config.score_scale, score_bias=bias)
        case _:
            raise BadInput(f"a {scorer.architecture} has no constant to set; leave out --tune")
    return rebuilt(scorer, config, weights, source="the tuned scorer")


def _fuse(weight: float, accurate: Sequence[list[float]], fast: Sequence[list[float]]) -> list[list[float]]:
    return [
        [one + weight * other for one, other in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(accurate, fast, strict=True)
    ]
