"""Measures how much each linear layer changes the scores when it is the only one in int8."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from bandrank.models.loading import LoadedModel
from bandrank.models.prepared import prepare
from bandrank.models.quantised import linear_layers
from bandrank_training.placement import CPU
from bandrank_training.progress import progress
from bandrank_training.scoring import OfflineScorer, Question

MOST = 0.05  # share of the spread of scores; layers that change scores by more stay in float32


def changes_of_layers(model: LoadedModel, questions: Sequence[Question]) -> dict[str, float]:
    """Returns, for each layer by name, the root mean square change of the scores of `questions`, as a share of their
    spread. The spread is the mean over queries of the standard deviation of scores.

    The scores are the model's own, without a fused scorer's. The model is left unchanged.
    Raises ValueError for a scorer that cannot be computed in int8 here.
    """
    names = frozenset(linear_layers(model.scorer))
    exact = list(_scores(model, questions, exact=names))
    spread = float(np.mean([each.std() for each in exact])) or math.nan
    expected = np.concatenate(exact)
    changes = {}
    for name in progress(names, "layers in int8", len(names), unit="layer"):
        near = np.concatenate(list(_scores(model, questions, exact=names - {name})))
        changes[name] = float(np.sqrt(np.mean((near - expected) ** 2))) / spread
    return {name: changes[name] for name in linear_layers(model.scorer)}


def sensitive(changes: dict[str, float]) -> tuple[str, ...]:
    """Names of the layers that change scores by more than `MOST`."""
    return tuple(name for name, change in changes.items() if change > MOST)


def report_of(changes: dict[str, float]) -> str:
    """Reports the layers that stay in float32 or, if none does, the one that comes closest."""
    if kept := sensitive(changes):
        lines = [
            f"{name} stays in float32: alone it changes scores by {changes[name]:.3f} of their spread" for name in kept
        ]
        return "\n".join(lines)
    name = max(changes, key=changes.__getitem__)
    return f"all {len(changes)} layers in int8: most is changed by {name}, {changes[name]:.3f} of the spread of scores"


def _scores(model: LoadedModel, questions: Sequence[Question], exact: frozenset[str]) -> Iterator[np.ndarray]:
    """Scores each question's candidates with all layers except `exact` in int8."""
    scorer = copy.deepcopy(model.scorer)
    scorer.exact_layers = exact
    prepared = prepare(scorer, device=CPU.device, dtype=torch.int8)
    for scores in OfflineScorer([(replace(model, scorer=scorer), prepared)]).score(questions):
        yield np.asarray(scores)
