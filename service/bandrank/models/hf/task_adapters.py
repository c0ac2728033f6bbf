"""Adapters for tasks (LoRA; Hu et al. 2021) as Jina AI's code saves them: beside each matrix, the factors of all."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from bandrank.models.hf.files import Weights
from bandrank.models.hf.model import Model

TASKS = ("retrieval.query", "retrieval.passage")
MATRIX, LEFT, RIGHT = (f".parametrizations.weight.{name}" for name in ("original", "0.lora_B", "0.lora_A"))


def restore_names(settings: Mapping[str, Any], weights: Weights) -> None:
    """Gives matrices their usual names. Raises ValueError for adapters without names, or names alone."""
    for name in [name for name in weights if name.endswith(MATRIX)]:
        weights[name.replace(MATRIX, ".weight")] = weights.pop(name)
    tasks = settings.get("lora_adaptations") or []
    if bool(tasks) != any(name.endswith(LEFT) for name in weights):
        raise ValueError(f"config.json names adapters for {tasks}, the weights have {'none' if tasks else 'some'}")


def tower_weights(model: Model) -> Weights:
    """The encoder's tensors under our names; with adapters, those of two encoders. Raises BadCheckpoint, KeyError."""
    if (model.folder / "retrieval_query" / "adapter_config.json").is_file():
        raise model.refuse("adapters for tasks in folders of their own are not supported")
    if not (tasks := model.settings.get("lora_adaptations")):
        return model.encoder_weights
    if not {*TASKS} <= {*tasks}:
        raise model.refuse(f"adapters for {tasks} are not supported without {' and '.join(TASKS)}")
    query, candidate = (replace(model, weights=_adapted(model, tasks.index(task))).encoder_weights for task in TASKS)
    apart = {name: each.clone() if each is query[name] else each for name, each in candidate.items()}
    return query | {f"candidate_{name}": each for name, each in apart.items()}


def _adapted(model: Model, task: int) -> Weights:
    adapted, rank = dict(model.weights), model.settings.get("lora_rank", 4)
    num_tasks, scale = len(model.settings["lora_adaptations"]), model.settings.get("lora_alpha", 1) / rank
    for name in [name.removesuffix(LEFT) for name in adapted if name.endswith(LEFT)]:
        matrix, left, right = adapted[f"{name}.weight"], adapted[name + LEFT], adapted[name + RIGHT]
        if name.startswith("embeddings."):  # their rows are inputs
            left, right = right, left
        expected = (num_tasks, *matrix.shape[:1], rank), (num_tasks, rank, *matrix.shape[1:])
        if (left.shape, right.shape) != expected:
            shapes = f"{tuple(left.shape)} and {tuple(right.shape)}, not {expected[0]} and {expected[1]}"
            raise model.refuse(f"the adapters of {name}.weight have the shapes {shapes}")
        adapted[f"{name}.weight"] = torch.addmm(matrix, left[task], right[task], alpha=scale)
    return adapted
