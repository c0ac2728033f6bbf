"""Dense modules of sentence-transformers behind a pooling."""

from pathlib import Path
from typing import Any

from bandrank.models.checkpoint import read_object
from bandrank.models.hf.files import Weights, read_weights
from bandrank.models.layers.dense import DenseActivation, DenseConfig

KNOWN: dict[str, DenseActivation] = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}


def activation(settings: dict[str, Any]) -> str:
    """The class name of a module's activation, which is Tanh where none is saved."""
    return str(settings.get("activation_function", "Tanh")).rsplit(".", 1)[-1]


def read(folder: Path) -> tuple[DenseConfig, Weights]:
    """The layer in a module's folder, and its weights.

    Raises BadCheckpoint, KeyError for a missing tensor, and ValueError for an unsupported layer.
    """
    settings = read_object(folder / "config.json")
    if (name := activation(settings)) not in KNOWN:
        raise ValueError(f"{folder.name}: a Dense module with {name} is not supported, only {', '.join(KNOWN)}")
    if settings.get("use_residual"):
        raise ValueError(f"{folder.name}: a Dense module with a residual is not supported")
    for key in ("module_input_name", "module_output_name"):
        if (place := settings.get(key) or "sentence_embedding") != "sentence_embedding":
            raise ValueError(f"{folder.name}: a Dense module on {place!r} is not supported, only on the pooled vector")
    weights = {name: tensor.float() for name, tensor in read_weights(folder).items()}
    size = len(weights["linear.weight"])
    return DenseConfig(size=size, activation=KNOWN[name], bias="linear.bias" in weights), weights
