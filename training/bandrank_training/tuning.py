"""Sets two numbers of a trained scorer on dev groups: its fusion's weight, and a constant that makes scores logits.

Losses over groups see only differences, so that a trained score is a logit up to a constant. With the constant, the
sigmoid of a score is the share of relevant candidates among judged ones with that score, if as many are relevant as are
not (Platt 1999, with the slope left at 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bandrank.models.architectures import CrossEncoder, MixEncoder
from bandrank.models.checkpoint import assemble
from bandrank.models.fusion import Fusion
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.scorer import Scorer
from bandrank_training.dev import DevSet
from bandrank_training.errors import BadInput
from bandrank_training.scoring import OfflineScorer, score_offline

WEIGHTS = (*np.arange(0.0, 2.01, 0.1).round(1).tolist(), 3.0, 5.0)
BISECTIONS = 60
BIAS = "head.classifier.bias"


@dataclass(frozen=True)
class Tuned:
    """A model with both numbers set. by_weight: the dev measure of each weight tried.  shift: added to all scores."""

    model: LoadedModel
    by_weight: dict[float, float]
    shift: float


def tune(model: LoadedModel, dev: DevSet) -> Tuned:
    """Sets the weight that is best on dev, among equals the one nearest to the old, and then the constant.

    Raises BadInput for a scorer that has no constant, BadCheckpoint.
    """
    scores = dev.scores(OfflineScorer.in_training(model))  # unprepared: it is saved again
    by_weight: dict[float, float] = {}
    if model.fusion is not None:
        fast = dev.scores(score_offline(load_model(model.fusion.scorer)))
        fused = {weight: _fuse(Fusion(model.fusion.scorer, weight), scores, fast) for weight in WEIGHTS}
        by_weight = {weight: dev.measure_scores(sums) for weight, sums in fused.items()}
        old = model.fusion.weight
        best = max(WEIGHTS, key=lambda weight: (by_weight[weight], -abs(weight - old)))
        model, scores = replace(model, fusion=replace(model.fusion, weight=best)), fused[best]
    labels = [label > 0 for group in dev.groups for label in group.labels or ()]
    constant = intercept([score for row in scores for score in row], labels)
    return Tuned(replace(model, scorer=shifted(model.scorer, constant)), by_weight, constant)


def intercept(scores: Sequence[float], relevant: Sequence[bool]) -> float:
    """The constant to add to scores so that the mean of their sigmoids is a half, where relevant candidates and others
    have the same total weight.
    """
    values, labels = np.asarray(scores), np.asarray(relevant)
    weights = np.where(labels, 0.5 / max(1, labels.sum()), 0.5 / max(1, (~labels).sum()))
    low, high = -values.max() - 50.0, -values.min() + 50.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        mean = weights @ (0.5 * (1 + np.tanh((values + middle) / 2)))
        low, high = (middle, high) if mean < weights.sum() / 2 else (low, middle)
    return float((low + high) / 2)


def shifted(scorer: Scorer, constant: float) -> Scorer:
    """A copy of the scorer with a constant added to all scores. Raises BadInput for a scorer that has no constant."""
    config, weights = scorer.config, scorer.state_dict()
    match scorer:
        case CrossEncoder():
            weights[BIAS] = weights[BIAS] + constant
        case MixEncoder() if config.bi_encoder_weight:
            config = replace(config, bi_encoder_bias=config.bi_encoder_bias + constant)
        case _:
            raise BadInput(f"a {scorer.architecture} has no constant to set; leave out --tune")
    return assemble(type(scorer), config, weights, source="the tuned scorer")


def _fuse(fusion: Fusion, accurate: Sequence[list[float]], fast: Sequence[list[float]]) -> list[list[float]]:
    return [
        [one + fusion.weight * other for one, other in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(accurate, fast, strict=True)
    ]
