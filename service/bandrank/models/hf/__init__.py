"""Models in Hugging Face's formats, with their names and settings translated to ours.

A model is a family of encoders (`families.FAMILIES`) in a role: cross-encoders with one label
(cross-encoder/ms-marco-MiniLM-L-6-v2 and similar), sparse cross-encoders (webis/sparse-cross-encoder-4-512 and -4096),
sentence-transformers bi-encoders (all-MiniLM-L6-v2), ColBERT, as Stanford's library (colbert-ir/colbertv2.0) or PyLate
(lightonai/GTE-ModernColBERT-v1) saves it, and decoders as re-rankers (Qwen/Qwen3-Reranker-0.6B,
mixedbread-ai/mxbai-rerank-base-v2). ModernBERT has cross-encoders of its own kind
(Alibaba-NLP/gte-reranker-modernbert-base), Ettin's are chains of modules (cross-encoder/ettin-reranker-17m-v1), and
Llama's, without a causal mask, take a prompt (nvidia/llama-nemotron-rerank-1b-v2).
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
