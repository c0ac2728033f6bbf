"""ColBERT as PyLate saves it: a transformer and a dense layer, with settings in config_sentence_transformers.json; the
defaults are PyLate's. A text is tokenised together with its prompt, and the prefix token is put before both.
"""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bandrank.models.architectures.colbert import ColBERT, ColBERTConfig
from bandrank.models.checkpoint import read_json, read_object
from bandrank.models.hf.dense import activation
from bandrank.models.hf.files import read_weights
from bandrank.models.hf.model import Model
from bandrank.models.hf.prompts import wordings
from bandrank.models.scorer import Scorer
from bandrank.models.wording import Wording

MODULES = ["Transformer", "Dense"]


def read(model: Model) -> Scorer:
    """The ColBERT of a folder. Raises BadCheckpoint, ValueError, and KeyError for a missing tensor."""
    folder, encoder = model.folder, model.encoder
    settings = read_object(folder / "config_sentence_transformers.json")
    require_maxsim(model, settings)
    query, candidate = wordings(settings)
    projection = read_projection(model, folder / read_json(folder / "modules.json")[1]["path"])
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
        dim=len(projection),
        augment=settings.get("do_query_expansion") is not False,
        attend_to_masks=settings.get("attend_to_expansion_tokens", False),
        max_query_tokens=min(settings.get("query_length") or 32, encoder.max_positions),
        max_candidate_tokens=min(settings.get("document_length") or 180, encoder.max_positions),
    )
    return model.assemble(ColBERT, config, {"projection.weight": projection})


def read_projection(model: Model, folder: Path) -> torch.Tensor:
    """(dim, hidden_size) the weights of a dense module. Raises BadCheckpoint if it computes more than a product."""
    settings = read_object(folder / "config.json")
    found = activation(settings)
    if found != "Identity" or settings.get("bias", True) or settings.get("use_residual"):
        raise model.refuse(f"a projection with activation {found}, a bias or a residual is not supported")
    return read_weights(folder)["linear.weight"]


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
