"""Starts with some layers of a trained model, or with the table of words of another, whose file then has it already."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from bandrank.models.checkpoint import BadCheckpoint, assemble
from bandrank.models.loading import LoadedModel
from bandrank_training.errors import BadRecipe

LAYERS, WORDS = "encoder.layers.", "encoder.embeddings.word.weight"


def with_layers(model: LoadedModel, layers: Sequence[int]) -> LoadedModel:
    """The model with only these of its encoder's layers, from 0 and in this order (as in Sanh et al. 2019, DistilBERT).

    Raises BadRecipe for layers that it lacks, and for an encoder whose layers differ in kind.
    """
    scorer = model.scorer
    encoder, depth = scorer.config.encoder, scorer.config.encoder.num_layers
    if outside := [layer for layer in layers if not 0 <= layer < depth]:
        raise BadRecipe(f"layers: {model.name} has layers 0 to {depth - 1}, but no layer {outside[0]}")
    if scorer.encoder.windows != [None]:
        raise BadRecipe(f"layers: those of {model.name} differ in their windows, so that none can be left out")
    weights = {name: weight for name, weight in scorer.state_dict().items() if not name.startswith(LAYERS)}
    for place, layer in enumerate(layers):
        weights |= _renamed(scorer.state_dict(), f"{LAYERS}{layer}.", f"{LAYERS}{place}.")
    try:
        config = replace(scorer.config, encoder=replace(encoder, num_layers=len(layers)))
        return replace(model, scorer=assemble(type(scorer), config, weights, source=model.name))
    except (BadCheckpoint, ValueError) as error:
        raise BadRecipe(f"layers: {error}") from error


def with_words(model: LoadedModel, other: LoadedModel) -> LoadedModel:
    """The model with the other's table of words. Raises BadRecipe if their vocabularies or sizes differ."""
    weights, words = model.scorer.state_dict(), other.scorer.state_dict().get(WORDS)
    same = words is not None and words.shape == weights[WORDS].shape
    if words is None or not same or model.tokenizer.get_vocab() != other.tokenizer.get_vocab():
        raise BadRecipe(f"words: {other.name} has not the words of {model.name}, or vectors of another size")
    scorer = assemble(type(model.scorer), model.scorer.config, weights | {WORDS: words}, source=model.name)
    return replace(model, scorer=scorer)


def _renamed(weights: dict[str, Tensor], begin: str, instead: str) -> dict[str, Tensor]:
    """Copies of the weights whose names start with `begin`, under names that start with `instead`."""
    return {instead + name.removeprefix(begin): weights[name].clone() for name in weights if name.startswith(begin)}
