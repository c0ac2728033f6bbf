"""`bandrank export`: turns a model of any family into a windowed cross-encoder in our own format, to train."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bandrank.models import checkpoint
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import load_model
from bandrank.models.windowed import windowed


def export(arguments: Sequence[str]) -> int:
    """Writes the checkpoint and says what it is; returns 0, or 2 for a model or a folder that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="bandrank export",
        description="Turns a cross-encoder or a bi-encoder into a windowed cross-encoder in bandrank's own format, "
        "which `python -m bandrank_training train` starts from. Its scores are worth little before it is trained.",
    )
    parser.add_argument("model", help="a folder, a hub id, or the name of a shipped checkpoint")
    parser.add_argument("folder", type=Path, help="the folder to write; it must be empty, or not exist yet")
    parser.add_argument("--window", type=int, required=True, help="tokens on each side that a candidate's token sees")
    parser.add_argument("--seed", type=int, default=0, help="of a head that a bi-encoder does not have (default: 0)")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadCheckpoint(f"{folder}: is not an empty folder")
        model = load_model(options.model)
        scorer = windowed(model.scorer, options.window, seed=options.seed)
        # Not copied: the model may have only a vocabulary.
        checkpoint.save(scorer, folder, tokenizer=model.tokenizer.to_str(pretty=True).encode())
    except ValueError as error:  # BadCheckpoint is one
        named = str(error) if isinstance(error, BadCheckpoint) else f"{options.model}: {error}"
        sys.stderr.write(f"bandrank: {named}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"bandrank: {error.filename or folder}: {error.strerror}\n")
        return 2
    head = "the model's head" if model.scorer.architecture == scorer.architecture else "a random head"
    sys.stdout.write(
        f"{folder}: {scorer.config.encoder.summary}, {scorer.config.pattern.summary}, {head}\n"
        f'train it before it is served: start = "{folder}" in the [model] of a recipe\n'
    )
    return 0
