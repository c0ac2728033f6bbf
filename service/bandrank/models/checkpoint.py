"""A scorer as a folder: config.json, model.safetensors, tokenizer.json. Loading runs no code from the folder.

Who needs another layout writes it here, with a new FORMAT.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialise

from bandrank.models import compact
from bandrank.models.architectures import ARCHITECTURES
from bandrank.models.fusion import Fusion
from bandrank.models.plain import parse
from bandrank.models.scorer import Scorer

FORMAT = 1


class BadCheckpoint(ValueError):
    """A folder that holds no scorer we can load; the message says what was found and what is supported."""


def save(
    scorer: Scorer,
    folder: Path,
    *,
    tokenizer: Path,
    fusion: Fusion | None = None,
    int8: tuple[str, ...] | None = None,
) -> None:
    """Writes `scorer` and a copy of the file `tokenizer` into `folder`, which is made if need be.

    int8: None keeps the weights as they are; otherwise they are packed into float16, and matrices whose name contains
    one of `int8` into int8 rows (compact.py).
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {"bandrank_format": FORMAT, "architecture": scorer.architecture, **asdict(scorer.config)}
    if fusion is not None:
        config["fusion"] = asdict(fusion)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = scorer.state_dict() if int8 is None else compact.pack(scorer.state_dict(), int8=int8)
    # Not save_file, whose files nobody else may read: a container serves as another user.
    (folder / "model.safetensors").write_bytes(serialise({name: each.contiguous() for name, each in weights.items()}))
    if tokenizer != folder / "tokenizer.json":
        shutil.copyfile(tokenizer, folder / "tokenizer.json")


def is_checkpoint(folder: Path) -> bool:
    """Whether `folder` was written by `save`, and not by Hugging Face's libraries."""
    return "bandrank_format" in _read_config(folder)


def load(folder: Path) -> Scorer:
    """The scorer saved in `folder`, on the CPU, in float32. Raises BadCheckpoint."""
    config = _read_config(folder)
    if config.pop("bandrank_format", None) != FORMAT:
        raise BadCheckpoint(f"{folder}: not a bandrank checkpoint of format {FORMAT}")
    config.pop("fusion", None)  # not the scorer's own
    name = config.pop("architecture", None)
    if name not in ARCHITECTURES:
        raise BadCheckpoint(f"{folder}: architecture {name!r} is unknown; there are {', '.join(sorted(ARCHITECTURES))}")
    architecture = ARCHITECTURES[name]
    try:
        parsed = parse(architecture.config_class, config)
    except (TypeError, ValueError) as error:
        raise BadCheckpoint(f"{folder / 'config.json'}: {error}") from error
    path = folder / "model.safetensors"
    try:
        weights = compact.unpack(load_file(path))
    except (FileNotFoundError, SafetensorError) as error:
        raise BadCheckpoint(f"{path}: missing or damaged: {error}") from error
    return assemble(architecture, parsed, weights, source=str(folder))


def load_fusion(folder: Path) -> Fusion | None:
    """With whose scores those of the scorer in `folder` are to be summed, if with any. Raises BadCheckpoint."""
    if (found := _read_config(folder).get("fusion")) is None:
        return None
    try:
        fusion: Fusion = parse(Fusion, found)
    except (TypeError, ValueError) as error:
        raise BadCheckpoint(f"{folder / 'config.json'}: fusion: {error}") from error
    return fusion


def assemble(architecture: type[Scorer], config: Any, weights: dict[str, torch.Tensor], *, source: str) -> Scorer:
    """A scorer of the architecture's own config with the given weights. Raises BadCheckpoint if they do not fit."""
    with torch.device("meta"):
        scorer = architecture(config)
    expected = {name: tensor.shape for name, tensor in scorer.state_dict().items()}
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    wrong = [name for name in sorted(expected.keys() & weights.keys()) if expected[name] != weights[name].shape]
    if missing or extra or wrong:
        raise BadCheckpoint(
            f"{source}: weights missing: {missing[:4]}, unexpected: {extra[:4]}, of another shape: {wrong[:4]}"
        )
    scorer.load_state_dict(weights, assign=True)
    return scorer.eval()


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadCheckpoint(
            f"{folder}: no config.json; a model folder needs config.json, weights and a tokenizer"
        ) from None
    except ValueError as error:
        raise BadCheckpoint(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise BadCheckpoint(f"{path}: expected a JSON object")
    return config
