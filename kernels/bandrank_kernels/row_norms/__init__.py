"""LayerNorm of sums of rows, in one launch: BERT's embeddings, and a residual with its norm."""

from bandrank_kernels.row_norms.addend import Addend
from bandrank_kernels.row_norms.interface import add_norm, embed_rows

__all__ = ["Addend", "add_norm", "embed_rows"]
