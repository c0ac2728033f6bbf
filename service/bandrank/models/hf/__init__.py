"""Models in Hugging Face's formats, with their names and settings translated to ours.

A model is a family of encoders (`load.FAMILIES`) in a role: cross-encoders with one label
(cross-encoder/ms-marco-MiniLM-L-6-v2 and similar), sparse cross-encoders (webis/sparse-cross-encoder-4-512 and -4096),
sentence-transformers bi-encoders (all-MiniLM-L6-v2), ColBERT, as Stanford's library (colbert-ir/colbertv2.0) or PyLate
(lightonai/GTE-ModernColBERT-v1) saves it, and decoders as re-rankers (Qwen/Qwen3-Reranker-0.6B,
mixedbread-ai/mxbai-rerank-base-v2). ModernBERT has cross-encoders of its own kind
(Alibaba-NLP/gte-reranker-modernbert-base), Ettin's are chains of modules (cross-encoder/ettin-reranker-17m-v1), and
Llama's, without a causal mask, take a prompt (nvidia/llama-nemotron-rerank-1b-v2).
"""

from bandrank.models.hf.load import load

__all__ = ["load"]
