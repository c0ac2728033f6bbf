"""From a model's name to a scorer and its tokenizer, whoever saved it."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from bandrank.models import checkpoint, hf_weights
from bandrank.models.hf_files import find_folder, load_tokenizer
from bandrank.models.scorer import Scorer


@dataclass(frozen=True)
class LoadedModel:
    """A scorer, its tokenizer, and the folder both came from."""

    name: str
    folder: Path
    scorer: Scorer
    tokenizer: Tokenizer


def load_model(model: str, revision: str | None = None) -> LoadedModel:
    """Loads a folder or a hub id: bandrank's own checkpoints, and what hf_weights supports. Raises BadCheckpoint."""
    folder = find_folder(model, revision)
    loader = checkpoint if checkpoint.is_checkpoint(folder) else hf_weights
    return LoadedModel(model, folder, loader.load(folder), load_tokenizer(folder))
