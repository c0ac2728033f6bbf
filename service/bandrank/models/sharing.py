"""Weights that a checkpoint shares with a shipped one, which alone stores them.

Two scorers of one vocabulary need one table of word vectors, the largest of their weights, and one tokenizer.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from bandrank.models.shipped import names, shipped

TOLERANCE = 1e-6  # relative, of scales, which are computed again when weights are packed again


@dataclass(frozen=True)
class Shared:
    """Weights that are stored in another checkpoint.

    checkpoint: the shipped checkpoint that stores them.  weights: their names there.  digest: the hash of their content
    at the time of writing, since another version may ship other weights under the same name.
    """

    checkpoint: str
    weights: tuple[str, ...]
    digest: str


def leave_out(weights: Mapping[str, Tensor], name: str) -> tuple[dict[str, Tensor], Shared]:
    """Returns the weights that the shipped checkpoint `name` lacks, and a record of those that it has.

    Raises ValueError if no such checkpoint ships.
    """
    other = load_file(_file(name))
    common = {each: theirs for each, theirs in other.items() if each in weights and _same(theirs, weights[each])}
    kept = {each: weight for each, weight in weights.items() if each not in common}
    return kept, Shared(name, tuple(sorted(common)), _digest(common))


def bring_back(weights: Mapping[str, Tensor], shared: Shared) -> dict[str, Tensor]:
    """Returns the weights together with those that were left out.

    Raises ValueError if the other checkpoint does not ship or has other weights by now.
    """
    with safe_open(_file(shared.checkpoint), "pt") as file:
        theirs = {each: file.get_tensor(each) for each in shared.weights if each in file.keys()}  # noqa: SIM118
    if _digest(theirs) != shared.digest:
        raise ValueError(
            f"the {shared.checkpoint!r} that ships with this version has other weights than the one it was written "
            "beside; export it again, with the version that wrote it, without --share"
        )
    return {**weights, **theirs}


def folder_of(name: str) -> Path:
    """The folder of a shipped checkpoint. Raises ValueError if none of this name ships."""
    folder = shipped(name)
    if folder is None:
        raise ValueError(f"no checkpoint {name!r} ships with this version, only {', '.join(names())}")
    return folder


def _file(name: str) -> Path:
    return folder_of(name) / "model.safetensors"


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype == torch.float32:
        return torch.allclose(one, other, rtol=TOLERANCE, atol=0.0)
    return torch.equal(one, other)


def _digest(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(weight.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
