"""Dense modules of sentence-transformers and PyLate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bandrank.models.checkpoint import read_object
from bandrank.models.hf.files import Weights, read_weights
from bandrank.models.layers.dense import DenseActivation, DenseConfig

KNOWN: dict[str, DenseActivation] = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}


def activation(settings: dict[str, Any]) -> str:
    """The class name of a module's activation, Tanh where none is saved; with its path if it is not of torch."""
    path = str(settings.get("activation_function", "torch.nn.Tanh"))
    return path.rsplit(".", 1)[-1] if path.startswith("torch.") else path


def read(folder: Path) -> tuple[DenseConfig, Weights]:
    """The layer in a module's folder, and its weights.

    Raises BadCheckpoint, KeyError for a missing tensor, and ValueError for an unsupported layer.
    """
    settings = read_object(folder / "config.json")
    if (name := activation(settings)) not in KNOWN:
        raise ValueError(f"{folder.name}: a Dense module with {name} is not supported, only {', '.join(KNOWN)}")
    weights = {name: tensor.float() for name, tensor in read_weights(folder).items()}
    config = DenseConfig(
        size=len(weights["linear.weight"]),
        activation=KNOWN[name],
        bias="linear.bias" in weights,
        residual=bool(settings.get("use_residual")),
    )
    return config, weights


def under(name: str, layers: Sequence[tuple[DenseConfig, Weights]]) -> Weights:
    """The weights of consecutive layers in one module of that name."""
    return {
        f"{name}.{index}.{key}": tensor for index, (_, weights) in enumerate(layers) for key, tensor in weights.items()
    }
