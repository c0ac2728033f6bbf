"""Losses that compare the student with another model on the same texts, by name."""

from collections.abc import Callable, Sequence

from torch import Tensor

from bandrank.models.architectures import CrossEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.loading import LoadedModel
from bandrank.models.scorer import Scorer
from bandrank_training.errors import BadRecipe
from bandrank_training.internals import deformer_states, virt_maps
from bandrank_training.vectors import VectorLoss

# The loss of a student on a batch, with the texts of its queries and candidates.
ModelLoss = Callable[[Scorer, ScoreBatch, Sequence[str], Sequence[str]], Tensor]


def of_layers(
    compare: Callable[[Scorer, CrossEncoder, ScoreBatch], Tensor],
) -> Callable[[LoadedModel, int], ModelLoss]:
    """Makes losses that look into the layers of a teacher on the same token ids."""

    def of(teacher: LoadedModel, max_candidate_tokens: int) -> ModelLoss:
        del max_candidate_tokens
        scorer = teacher.scorer
        if not isinstance(scorer, CrossEncoder) or not scorer.config.pattern.is_full:
            raise BadRecipe(f"{teacher.name} cannot be looked into: that takes a cross-encoder with full attention")
        return lambda student, batch, _queries, _candidates: compare(student, scorer, batch)

    return of


# By name, a function that makes the loss for a teacher and raises BadRecipe for a teacher of the wrong kind.
MODEL_LOSSES: dict[str, Callable[[LoadedModel, int], ModelLoss]] = {
    "virt_maps": of_layers(virt_maps),
    "deformer_states": of_layers(deformer_states),
    "vectors": VectorLoss,
}
