"""Models in Hugging Face's formats, their names and settings translated to ours: a family of encoders in a role.

Families: FAMILIES. Roles: cross-encoders with one label (cross-encoder/ms-marco-MiniLM-L-6-v2 and its kin), sparse
cross-encoders (webis/sparse-cross-encoder-4-512 and -4096), sentence-transformers bi-encoders (all-MiniLM-L6-v2), and
ColBERT (colbert-ir/colbertv2.0).
"""

from bandrank.models.hf.load import FAMILIES, load

__all__ = ["FAMILIES", "load"]
