"""From a model's name to a scorer and its tokenizer, whoever saved it."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from bandrank.models import checkpoint, hf
from bandrank.models.fusion import Fusion
from bandrank.models.hf.files import find_folder, load_tokenizer
from bandrank.models.scorer import Scorer
from bandrank.models.shipped import shipped


@dataclass(frozen=True)
class LoadedModel:
    """A scorer, its tokenizer, and the folder both came from.

    fusion: with whose scores this one's are to be summed, if they mean nothing alone.
    """

    name: str
    folder: Path
    scorer: Scorer
    tokenizer: Tokenizer
    fusion: Fusion | None = None


def load_model(model: str, revision: str | None = None) -> LoadedModel:
    """Loads a checkpoint shipped under this name, or a folder or hub id: bandrank's own checkpoints, and what
    models/hf supports. Raises BadCheckpoint.
    """
    folder = shipped(model) or find_folder(model, revision)
    if checkpoint.is_checkpoint(folder):
        fusion = checkpoint.load_fusion(folder)
        return LoadedModel(model, folder, checkpoint.load(folder), load_tokenizer(folder), fusion)
    return LoadedModel(model, folder, hf.load(folder), load_tokenizer(folder))
