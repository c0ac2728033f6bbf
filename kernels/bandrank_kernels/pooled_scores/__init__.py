"""Scores of pooled rows in one launch: a dense layer, its activation, and the product with one vector."""

from bandrank_kernels.pooled_scores.cuda import HeadActivation, why_unsupported
from bandrank_kernels.pooled_scores.interface import ACTIVATIONS, pooled_scores

__all__ = ["ACTIVATIONS", "HeadActivation", "pooled_scores", "why_unsupported"]
