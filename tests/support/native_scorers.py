"""Small scorers that the CPU kernels compute whole, prepared for them."""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from support.decoders import tiny_decoder_reranker
from support.grouped import tiny_embedding_gemma2_bi_encoder, tiny_gemma3_bi_encoder, tiny_llama_reranker
from support.models import random_scorer, tiny_bi_encoder, tiny_cross_encoder, tiny_encoder_config
from support.modernbert import tiny_encoder_config as modernbert_config
from support.modernbert import tiny_sequence_cross_encoder
from support.precomputing import tiny_mix_encoder, with_words
from torch import Tensor

from bandrank.models.architectures import BiEncoder, MixEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.dense import DenseConfig
from bandrank.models.layers.lexical import LexicalConfig
from bandrank.models.layers.patterns import sparse
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.models.scorer import Scorer

CPU = torch.device("cpu")


def mix_encoder(**more: Any) -> MixEncoder:
    """Returns a random MixEncoder of two heads. more: arguments of `tiny_mix_encoder`."""
    return tiny_mix_encoder(**{"encoder": tiny_encoder_config(num_heads=2)} | more)


def dense_bi_encoder(**more: Any) -> BiEncoder:
    """Returns a random bi-encoder with a layer behind the pooling. more: fields of its config."""
    config = tiny_bi_encoder(num_heads=2, max_tokens=512).config
    return random_scorer(BiEncoder(replace(config, dense=(DenseConfig(40),), **more)), 0)


# Heads of 16 numbers, so that the CPU kernels compute the attention too.
NATIVE = {
    "full": lambda: tiny_cross_encoder(num_heads=2, max_tokens=64),
    "sparse": lambda: tiny_cross_encoder(num_heads=2, pattern=sparse(4), max_tokens=64),
    "lexical": lambda: with_words(tiny_cross_encoder(num_heads=2, max_tokens=64, lexical=LexicalConfig(20.0))),
    "modernbert": lambda: tiny_sequence_cross_encoder(encoder=replace(modernbert_config(), num_heads=2)),
    "bi_encoder": lambda: tiny_bi_encoder(num_heads=2, max_tokens=512),
    "bi_encoder apart": lambda: tiny_bi_encoder(num_heads=2, max_tokens=512, separate_towers=True),
    "bi_encoder with a layer": dense_bi_encoder,
    "bi_encoder cut": lambda: dense_bi_encoder(size=24),
    "decoder": tiny_decoder_reranker,
    "llama": tiny_llama_reranker,
    "gemma3": tiny_gemma3_bi_encoder,
    "embedding_gemma2": tiny_embedding_gemma2_bi_encoder,
    "mix_encoder": lambda: mix_encoder(paper="b", similarity="cosine"),
    "mix_encoder c": lambda: mix_encoder(paper="c"),
    "mix_encoder 48": lambda: mix_encoder(encoder=replace(tiny_encoder_config(), hidden_size=48, num_heads=3), seed=2),
    "mix_encoder codes": lambda: mix_encoder(strategy="C", num_embeddings=3),
}


def prepared(scorer: Scorer, dtype: torch.dtype) -> PreparedScorer:
    """Prepares a copy of the scorer on the CPU."""
    return prepare(copy.deepcopy(scorer), device=CPU, dtype=dtype)


@cache
def packed(name: str, dtype: torch.dtype) -> PreparedScorer:
    """Returns one of `NATIVE`, prepared once."""
    return prepared(NATIVE[name](), dtype)


def scores(scorer: PreparedScorer, batch: ScoreBatch) -> Tensor:
    """Returns the scores of a batch of token ids, computed as the service does."""
    with torch.inference_mode():
        return scorer(batch)
