"""Builds, loads and writes the models of training commands."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bandrank.models import checkpoint
from bandrank.models.architectures import ARCHITECTURES, ColBERT, CrossEncoder
from bandrank.models.checkpoint import BadCheckpoint, Precision, assemble, load_precision, save_precision
from bandrank.models.layers.interpolation import interpolate_positions
from bandrank.models.loading import LoadedModel
from bandrank.models.plain import parse
from bandrank.models.scorer import Scorer
from bandrank.models.shipped import shipped
from bandrank.models.texts import punctuation_ids
from bandrank_training.errors import BadInput, BadRecipe
from bandrank_training.recipe import ModelRecipe
from bandrank_training.shortening import with_layers, with_words
from bandrank_training.start import load_start

AnyScorer = TypeVar("AnyScorer", bound=Scorer)
POSITIONS = "encoder.embeddings.position.weight"
# The special tokens of config fields in a BERT vocabulary; the markers are those of Stanford's ColBERT.
SPECIAL_TOKENS = {
    "cls_id": "[CLS]",
    "sep_id": "[SEP]",
    "mask_id": "[MASK]",
    "query_marker": "[unused0]",
    "candidate_marker": "[unused1]",
}


def build(recipe: ModelRecipe, *, seed: int) -> LoadedModel:
    """Builds the recipe's architecture with the start's weights; weights that the start lacks are drawn by the seed.

    If the new scorer reads longer texts than its start, the start's positions are interpolated (Schlatt et al. 2024).
    An added sentence token starts as the mean of all tokens. A ColBERT keeps no vectors of punctuation.

    Raises BadRecipe for an unknown architecture or an invalid config, and BadCheckpoint.
    """
    start = load_start(recipe.start)
    start = with_layers(start, recipe.layers) if recipe.layers else start
    start = with_words(start, load_start(recipe.words)) if recipe.words else start
    name = recipe.architecture or start.scorer.architecture
    if name not in ARCHITECTURES:
        raise BadRecipe(f"architecture {name!r} is unknown; there are {', '.join(sorted(ARCHITECTURES))}")
    architecture = ARCHITECTURES[name]
    same = isinstance(start.scorer, architecture)
    if same and start.query_tokenizer is not None:
        raise BadRecipe(f"{recipe.start}: a bi-encoder whose queries have their own tokenizer cannot be trained")
    inherited = _inherited(start, architecture, same=same)
    if recipe.add_sentence_token:
        if architecture is not CrossEncoder:
            raise BadRecipe(f"add_sentence_token: a {name} has none; that takes a cross_encoder")
        inherited |= _grow(start.scorer)
    weights = start.scorer.state_dict() if same else {}
    try:
        config = parse(architecture.config_class, inherited | dict(recipe.config))
        if POSITIONS in weights and config.encoder.max_positions > len(weights[POSITIONS]):
            weights[POSITIONS] = interpolate_positions(weights[POSITIONS], config.encoder.max_positions)
    except (TypeError, ValueError) as error:
        raise BadRecipe(f"config of {name}: {error}") from error
    if same:
        scorer = rebuilt(start.scorer, config, weights, source=recipe.start)
    else:
        torch.manual_seed(seed)
        try:
            scorer = architecture(config).initialise(start.scorer.encoder)
        except RuntimeError as error:
            raise BadRecipe(f"config of {name}: the encoder of {recipe.start} does not fit into it") from error
    return LoadedModel(name, start.folder, scorer, start.tokenizer)


def rebuilt(scorer: AnyScorer, config: Any, weights: dict[str, Tensor], *, source: str) -> AnyScorer:
    """Rebuilds a scorer with other settings or weights; int8 still leaves the same layers in float32.

    source: named in the error. Raises BadCheckpoint.
    """
    made = assemble(type(scorer), config, weights, source=source)
    made.exact_layers = scorer.exact_layers
    return made


def check_out(out: Path, models: Sequence[LoadedModel], *, words: str = "", resumed: Sequence[str] = ()) -> None:
    """Raises BadInput for a folder with a model that would be overwritten: one of the models, that of `words`, a scorer
    that one adds to, or any other.

    resumed: files of an earlier run of the same command, whose model may be overwritten.
    """
    read = [model.folder for model in models] + [Path(model.fusion.scorer) for model in models if model.fusion]
    read += [shipped(words) or Path(words)] if words else []
    if any(out.resolve() == folder.resolve() for folder in read):
        raise BadInput(f"{out} is the folder of a model that is read; choose another")
    if (out / "config.json").exists() and not any((out / name).exists() for name in resumed):
        raise BadInput(f"{out}, the folder to write, holds a model; choose another, or delete it")


def load_teacher(name: str, device: torch.device) -> LoadedModel:
    """Loads a trained model and freezes it. Raises BadCheckpoint."""
    model = load_start(name)
    model.scorer.to(device).eval().requires_grad_(requires_grad=False)
    return model


def write_model(model: LoadedModel, folder: Path) -> None:
    """Writes a checkpoint. If the folder had the same weights, as after a finished run, what `quantise` found stays."""
    tokenizer, weights = tokenizer_file(model), folder / "model.safetensors"
    measured = load_precision(folder) if (folder / "config.json").is_file() else Precision()
    before = weights.read_bytes() if measured != Precision() and weights.is_file() else b""
    checkpoint.save(model.scorer, folder, tokenizer=tokenizer, fusion=model.fusion)
    if before and weights.read_bytes() == before:
        save_precision(folder, measured)


def tokenizer_file(model: LoadedModel) -> bytes:
    """The content of a tokenizer.json; the model itself may have only a vocabulary, or lower-case by another file.

    Raises BadCheckpoint for a second tokenizer.
    """
    if model.query_tokenizer is not None:
        raise BadCheckpoint(f"{model.name}: queries have their own tokenizer, for which a checkpoint has no place")
    return model.tokenizer.to_str(pretty=True).encode()


def _inherited(start: LoadedModel, architecture: type[Scorer], *, same: bool) -> dict[str, object]:
    """The config fields that come from the start: all, or its encoder and the special tokens."""
    config = start.scorer.config
    if same:
        return {field.name: getattr(config, field.name) for field in fields(config)}
    known: dict[str, object] = {"encoder": config.encoder}
    for name, token in SPECIAL_TOKENS.items():
        known[name] = start.tokenizer.token_to_id(token)
    if issubclass(architecture, ColBERT):
        known["skipped_ids"] = punctuation_ids(start.tokenizer)
    names = {field.name for field in fields(architecture.config_class)}
    return {name: value for name, value in known.items() if name in names}


def _grow(start: Scorer) -> dict[str, object]:
    """Adds a token to the start's encoder; returns the config fields that this changes."""
    encoder = start.config.encoder
    words = start.get_submodule("encoder.embeddings.word")
    assert isinstance(words, nn.Embedding), "every encoder has a table of words. This is a bug."
    words.weight = nn.Parameter(torch.cat([words.weight, words.weight.mean(0, keepdim=True)]).detach())
    return {"encoder": replace(encoder, vocab_size=encoder.vocab_size + 1), "sentence_token": encoder.vocab_size}
