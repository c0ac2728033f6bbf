"""ColBERT as PyLate saves it: a transformer and dense layers, with settings in config_sentence_transformers.json; the
defaults are PyLate's. A text is tokenised together with its prompt, and the prefix token is put before both.
"""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bandrank.models.architectures.colbert import ColBERT, ColBERTConfig
from bandrank.models.checkpoint import read_json, read_object
from bandrank.models.hf import dense
from bandrank.models.hf.files import Weights
from bandrank.models.hf.model import Model
from bandrank.models.hf.prompts import wordings
from bandrank.models.scorer import Scorer
from bandrank.models.wording import Wording


def read(model: Model) -> Scorer:
    """The ColBERT of a folder. Raises BadCheckpoint, ValueError, and KeyError for a missing tensor."""
    folder, encoder = model.folder, model.encoder
    settings = read_object(folder / "config_sentence_transformers.json")
    require_maxsim(model, settings)
    query, candidate = wordings(settings)
    layers = [folder / each["path"] for each in read_json(folder / "modules.json")[1:]]
    projection, weights = read_projection(layers)
    words = settings.get("skiplist_words")
    config = ColBERTConfig(
        **model.ids(),
        mask_id=model.mask_id,
        encoder=encoder,
        query_marker=_marker(model, settings.get("query_prefix", "[Q] "), query),
        candidate_marker=_marker(model, settings.get("document_prefix", "[D] "), candidate),
        query_wording=query,
        candidate_wording=candidate,
        skipped_ids=model.ids_of_words(string.punctuation if words is None else words),
        **projection,
        augment=settings.get("do_query_expansion") is not False,
        attend_to_masks=settings.get("attend_to_expansion_tokens", False),
        max_query_tokens=min(settings.get("query_length") or 32, encoder.max_positions),
        max_candidate_tokens=min(settings.get("document_length") or 180, encoder.max_positions),
    )
    return model.assemble(ColBERT, config, weights)


def read_projection(folders: Sequence[Path]) -> tuple[dict[str, Any], Weights]:
    """What computes a vector of a state: fields of `ColBERTConfig`, and their weights. Layers that only multiply by
    matrices, with residuals or without, become one product.

    folders: of the dense modules.  Raises BadCheckpoint, KeyError for a missing tensor, and ValueError for an
    unsupported layer, or one without an activation, whose default differs between the libraries.
    """
    for folder in folders:
        if "activation_function" not in read_object(folder / "config.json"):
            raise ValueError(f"{folder.name}: a Dense module of a ColBERT needs an activation_function")
    layers = [dense.read(folder) for folder in folders]
    if any(layer.activation != "identity" or layer.bias for layer, _ in layers):
        dims = {"dim": layers[-1][0].size, "dense": tuple(layer for layer, _ in layers)}
        return dims, dense.under("dense", layers)
    product = torch.eye(layers[0][1]["linear.weight"].shape[1], dtype=torch.float64)
    for layer, weights in layers:
        own = weights.get("residual.weight", torch.eye(layer.size)) if layer.residual else 0.0
        product = (weights["linear.weight"] + own).double() @ product
    return {"dim": len(product)}, {"projection.weight": product.float()}


def require_maxsim(model: Model, library: Mapping[str, Any]) -> None:
    """Raises BadCheckpoint if config_sentence_transformers.json names another similarity than MaxSim, which PyLate
    called "cosine" before 2025.
    """
    if (similarity := library.get("similarity_fn_name")) not in ("MaxSim", "maxsim", "cosine", None):
        raise model.refuse(f"similarity {similarity!r} is not supported, only MaxSim")


def _marker(model: Model, prefix: str | None, wording: Wording) -> int | None:
    """The id of the token between [CLS] and the words around a text; None for no token. Raises BadCheckpoint if these
    words begin with it too: PyLate then reads it twice, and sentence-transformers once.
    """
    if not prefix:
        return None
    if wording.plain.startswith(prefix):
        raise model.refuse(f"a ColBERT with the prefix {prefix!r} and a prompt that begins with it is not supported")
    return model.token_id(prefix)
