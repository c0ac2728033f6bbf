"""How a bi-encoder's vectors are compared, which its folder need not say."""

from typing import Any

from bandrank.models.architectures.bi_encoder import Similarity
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.hf.model import Model
from bandrank.models.known import trained_for_dot

DEFAULT: Similarity = "cosine"  # of `SentenceTransformer.similarity`


def read_similarity(model: Model, saved: Any, *, normalised: bool) -> tuple[Similarity, str]:
    """The similarity and, as a clause, the reason for it: what the user wants, what the folder says, what is known of
    the model, or else sentence-transformers' default.

    saved: `similarity_fn_name`, None if the folder has none.  normalised: whether a module makes vectors of unit
    length, whose dot product is their cosine.  Raises BadCheckpoint for another similarity.
    """
    if saved not in {"cosine", "dot", None}:
        raise BadCheckpoint(f"{model.folder}: similarity {saved!r} is not supported, only cosine or dot")
    if normalised:
        return "cosine", "its module Normalize"
    if model.similarity is not None:
        return model.similarity, "as asked for"
    if saved is not None:
        return saved, "its similarity_fn_name"
    if trained_for_dot(model.name):
        return "dot", "known of this model"
    return DEFAULT, "the default, as its files do not say"
