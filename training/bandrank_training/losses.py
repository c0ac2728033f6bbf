"""Losses over groups of scores. All take raw scores and return the mean over their terms.

A teacher is given by weights of scores in the groups, {"minilm": 20.0, "bm25": 0.3}: its logit for a candidate is their
weighted sum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, isnan

import torch
from torch import Tensor
from torch.nn import functional

from bandrank_training.errors import BadInput

UNKNOWN = -1  # the label of a candidate that nobody judged


@dataclass(frozen=True)
class Scored:
    """Scores of some groups. All tensors are (num_groups, width), padded, and valid where `mask` is set.

    labels: relevance, UNKNOWN where nobody judged.  teachers: raw scores by name.
    """

    scores: Tensor
    mask: Tensor
    labels: Tensor
    teachers: Mapping[str, Tensor]

    def teacher(self, weights: Mapping[str, float]) -> Tensor:
        """The teacher's logits, (num_groups, width). Raises BadInput for a teacher without scores."""
        if missing := weights.keys() - self.teachers.keys():
            raise BadInput(f"no teacher scores {sorted(missing)}; the groups have {sorted(self.teachers)}")
        return torch.stack([weight * self.teachers[name] for name, weight in weights.items()]).sum(0)

    def plus(self, weights: Mapping[str, float]) -> "Scored":
        """Adds the scores of teachers to the scorer's. Raises BadInput as `teacher` does."""
        return replace(self, scores=self.scores + self.teacher(weights)) if weights else self


@dataclass(frozen=True)
class LossRecipe:
    """A loss and its weight in the sum of losses.

    teacher: weights of teachers for a loss that distils.  temperature: divides the logits of both sides.
    denoise: "contrastive" ignores an irrelevant candidate that the teacher scores at least this far above its group's
    worst relevant one: such candidates are often relevant, but unjudged (Qu et al. 2021, RocketQA).
    """

    name: str
    weight: float = 1.0
    teacher: Mapping[str, float] = field(default_factory=dict)
    temperature: float = 1.0
    denoise: float | None = None

    def __post_init__(self) -> None:
        if self.name not in LOSSES:
            raise ValueError(f"loss {self.name!r} is unknown; there are {', '.join(LOSSES)}")
        if self.name in {"margin_mse", "distil"} and not self.teacher:
            raise ValueError(f"loss {self.name!r} needs a teacher")
        if self.denoise is not None and (self.name != "contrastive" or not self.teacher):
            raise ValueError("denoise goes with the loss 'contrastive' and a teacher")
        if self.name == "in_batch" and self.teacher:
            raise ValueError("loss 'in_batch' takes no teacher: teachers scored a query's own candidates only")
        if not self.temperature > 0:  # as nan is not
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        for name, value in self.teacher.items():
            if not isfinite(value):
                raise ValueError(f"teacher: {name} must have a finite weight, got {value}")
        if self.denoise is not None and isnan(self.denoise):  # no candidate would be a negative
            raise ValueError("denoise must be a number, got nan")
        if not self.weight >= 0:
            raise ValueError(f"weight must be at least 0, got {self.weight}")

    @property
    def learns_from_labels(self) -> bool:
        """Whether the loss learns nothing from a group without a relevant candidate."""
        return self.name in {"contrastive", "in_batch"} or not self.teacher


def margin_mse(scored: Scored, recipe: LossRecipe) -> Tensor:
    """The mean squared difference of the student's margins from the teacher's (Hofstaetter et al. 2020, arXiv
    2010.02666).

    Margins are between a group's best candidate by the teacher (its best relevant one, if any) and each of the others.
    """
    teacher = scored.teacher(recipe.teacher)
    relevant = scored.mask & (scored.labels > 0)
    eligible = torch.where(relevant.any(1, keepdim=True), relevant, scored.mask)
    best = teacher.masked_fill(~eligible, -torch.inf).argmax(1, keepdim=True)
    others = scored.mask.scatter(1, best, value=False)
    margins = scored.scores.gather(1, best) - scored.scores
    targets = teacher.gather(1, best) - teacher
    return _mean(((margins - targets) / recipe.temperature).square(), others)


def ranknet(scored: Scored, recipe: LossRecipe) -> Tensor:
    """The logistic loss of every pair in which one candidate is better (Burges et al. 2005), by the teacher if one is
    named, else by label.
    """
    value = scored.teacher(recipe.teacher) if recipe.teacher else scored.labels.float()
    known = scored.mask if recipe.teacher else scored.mask & (scored.labels != UNKNOWN)
    better = (value[:, :, None] > value[:, None, :]) & known[:, :, None] & known[:, None, :]
    logits = scored.scores / recipe.temperature
    return _mean(functional.softplus(logits[:, None, :] - logits[:, :, None]), better)


def distil(scored: Scored, recipe: LossRecipe) -> Tensor:
    """Kullback-Leibler divergence from the teacher's softmax over a group (Cao et al. 2007, ListNet; with a teacher as
    in Santhanam et al. 2022, ColBERTv2).
    """
    teacher = _softmax_input(scored.teacher(recipe.teacher) / recipe.temperature, scored.mask).log_softmax(1)
    student = _softmax_input(scored.scores / recipe.temperature, scored.mask).log_softmax(1)
    terms = teacher.exp() * (teacher - student)
    return terms.masked_fill(~scored.mask, 0).sum(1).mean() * recipe.temperature**2


def contrastive(scored: Scored, recipe: LossRecipe) -> Tensor:
    """The softmax cross-entropy of each relevant candidate against its group's irrelevant ones: localized contrastive
    estimation (Gao et al. 2021, arXiv 2101.08751). Unjudged groups are ignored.
    """
    relevant = scored.mask & (scored.labels > 0)
    negative = scored.mask & (scored.labels == 0)
    if recipe.denoise is not None:
        teacher = scored.teacher(recipe.teacher)
        least = teacher.masked_fill(~relevant, torch.inf).amin(1, keepdim=True)
        negative &= teacher < least + recipe.denoise
    logits = scored.scores / recipe.temperature
    against = logits.masked_fill(~negative, -torch.inf).logsumexp(1, keepdim=True)
    # softplus(against - logit) = -log(exp(logit) / (exp(logit) + sum of exp(negatives)))
    return _mean(functional.softplus(against - logits), relevant)


def in_batch(scored: Scored, recipe: LossRecipe) -> Tensor:
    """`contrastive` over groups that also hold the other candidates of the batch: every query is scored against every
    candidate of the batch (Yang et al. 2023, 4.2; Humeau et al. 2020, 4.2).
    """
    return contrastive(scored, recipe)


Loss = Callable[[Scored, LossRecipe], Tensor]
LOSSES: dict[str, Loss] = {loss.__name__: loss for loss in (margin_mse, ranknet, distil, contrastive, in_batch)}


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen values, 0 if there are none. The other values may be anything."""
    return torch.where(chosen, values, 0.0).sum() / chosen.sum().clamp(min=1)


def _softmax_input(logits: Tensor, mask: Tensor) -> Tensor:
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
