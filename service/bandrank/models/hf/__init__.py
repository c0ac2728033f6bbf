"""Models in Hugging Face's formats, with their names and settings translated to ours.

A model is a family of encoders (`families.FAMILIES`) in a role: a cross-encoder with one label, a sparse one, a
bi-encoder of sentence-transformers, a ColBERT, as one of three libraries saves it, or a re-ranker that takes a prompt.
"""

from pathlib import Path

from bandrank import logs
from bandrank.models.architectures.bi_encoder import Similarity
from bandrank.models.scorer import Scorer


def load(folder: Path, *, name: str = "", similarity: Similarity | None = None, size: int | None = None) -> Scorer:
    """The scorer in a folder, as from `families.load`."""
    from bandrank.models.hf import families  # noqa: PLC0415  # with transformers, which takes half a second

    logs.drop_own_handlers()
    return families.load(folder, name=name, similarity=similarity, size=size)
