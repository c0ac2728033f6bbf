"""A tiny random scorer of every architecture in its main variants, and texts for it."""

import random
from collections.abc import Callable

from support.decoders import tiny_candidate_first_reranker, tiny_decoder_bi_encoder, tiny_decoder_reranker
from support.grouped import tiny_embedding_gemma2_bi_encoder, tiny_gemma3_bi_encoder, tiny_llama_reranker
from support.models import random_ids, tiny_bi_encoder, tiny_cross_encoder, tiny_static_bi_encoder
from support.modernbert import tiny_sequence_cross_encoder
from support.precomputing import (
    tiny_colbert,
    tiny_deformer,
    tiny_mix_encoder,
    tiny_poly_encoder,
    tiny_splade,
    tiny_virt,
    with_words,
)
from support.t5 import tiny_t5_reranker
from support.tokenizer import SENTENCE_ID

from bandrank.models.architectures import ARCHITECTURES
from bandrank.models.layers.dense import DenseConfig
from bandrank.models.layers.lexical import LexicalConfig
from bandrank.models.layers.patterns import longformer, sparse
from bandrank.models.scorer import Scorer

# With max_tokens=64, cross-encoders cut long candidates into passages.
VARIANTS: dict[str, Callable[[], Scorer]] = {
    "cross_encoder full": lambda: tiny_cross_encoder(max_tokens=64),
    "cross_encoder sparse": lambda: tiny_cross_encoder(pattern=sparse(4), max_tokens=64),
    "cross_encoder sparse long": lambda: tiny_cross_encoder(pattern=sparse(4)),
    "cross_encoder unwindowed": lambda: tiny_cross_encoder(pattern=sparse(None)),
    "cross_encoder longformer": lambda: tiny_cross_encoder(pattern=longformer(4)),
    "cross_encoder sentences": lambda: tiny_cross_encoder(pattern=longformer(4), sentence_token=SENTENCE_ID),
    "cross_encoder lexical": lambda: with_words(tiny_cross_encoder(max_tokens=64, lexical=LexicalConfig(20.0))),
    "sequence_cross_encoder cls": lambda: tiny_sequence_cross_encoder(max_tokens=64),
    "sequence_cross_encoder mean long": lambda: tiny_sequence_cross_encoder(pooling="mean"),
    "sequence_cross_encoder llama": tiny_llama_reranker,
    "sequence_cross_encoder late": lambda: tiny_llama_reranker(pooling="late", between=(SENTENCE_ID,)),
    "bi_encoder mean": lambda: tiny_bi_encoder(max_tokens=512),
    "bi_encoder cls dot": lambda: tiny_bi_encoder(max_tokens=512, pooling="cls", similarity="dot"),
    "bi_encoder cut dot": lambda: tiny_bi_encoder(max_tokens=512, similarity="dot", size=20),
    "bi_encoder joined": lambda: tiny_bi_encoder(max_tokens=512, joined=("cls", "max")),
    "bi_encoder static": tiny_static_bi_encoder,
    "bi_encoder apart": lambda: tiny_bi_encoder(max_tokens=512, separate_towers=True),
    "bi_encoder of two": lambda: tiny_bi_encoder(max_tokens=512, of_queries=tiny_static_bi_encoder().config),
    "bi_encoder decoder": tiny_decoder_bi_encoder,
    "bi_encoder gemma3": tiny_gemma3_bi_encoder,
    "bi_encoder embedding_gemma2": tiny_embedding_gemma2_bi_encoder,
    "decoder_reranker": tiny_decoder_reranker,
    "candidate_first_reranker": tiny_candidate_first_reranker,
    "seq2seq_reranker": tiny_t5_reranker,
    "mix_encoder a dot": lambda: tiny_mix_encoder(paper="a"),
    "mix_encoder b": lambda: tiny_mix_encoder(paper="b", num_layers=3, similarity="cosine", seed=5),
    "mix_encoder c dot": lambda: tiny_mix_encoder(paper="c"),
    "mix_encoder lexical": lambda: with_words(tiny_mix_encoder(lexical=LexicalConfig(20.0, most_words=24))),
    "mix_encoder codes dot": lambda: tiny_mix_encoder(strategy="C", num_embeddings=3, interaction_layers=(0,)),
    "poly_encoder learnt": lambda: tiny_poly_encoder(scaled=True),
    "poly_encoder first apart": lambda: tiny_poly_encoder(
        codes="first", separate_towers=True, reduction="cls", output_scaling=0.3
    ),
    "poly_encoder max": lambda: tiny_poly_encoder(reduction="max", output_scaling=0.3),
    "colbert v2": tiny_colbert,
    "colbert dense": lambda: tiny_colbert(dense=(DenseConfig(24, "gelu", residual=True), DenseConfig(16, bias=False))),
    "colbert l2": lambda: tiny_colbert(similarity="l2", attend_to_masks=True),
    "colbert baseline": lambda: tiny_colbert(query_marker=None, candidate_marker=None, augment=False, floor=True),
    "deformer": tiny_deformer,
    "deformer own cls": lambda: tiny_deformer(candidate_cls=True, split=2),
    "splade": lambda: tiny_splade(score_scale=0.01),
    "splade table": lambda: tiny_splade(query_table=True, pooling="sum", num_logs=2, score_scale=0.01),
    "virt": tiny_virt,
    "virt dot": lambda: tiny_virt(similarity="dot"),
}
PRECOMPUTING = [variant for variant in VARIANTS if ARCHITECTURES[variant.split()[0]].precomputes]


def template_ids(scorer: Scorer, rng: random.Random, num_pieces: int, *, query: bool = False) -> list[int]:
    """The ids of a random text, to which the scorer's template is applied."""
    template = scorer.query_template if query else scorer.candidate_template
    pieces = random_ids(rng, num_pieces)[:-1]
    if template.sentence_token is not None and not query:
        pieces[::7] = [template.sentence_token] * len(pieces[::7])
    return template.apply(pieces)[0]


def random_texts(scorer: Scorer) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Token ids of three queries with 7, 0 and 3 candidates of 0 to 150 pieces. Recorded scores are of these."""
    rng = random.Random(0)
    lengths = [[0, 1, 8, 9, 63, 150, 33], [], [40, 41, 2]]
    queries = [template_ids(scorer, rng, num_pieces, query=True) for num_pieces in (6, 0, 11)]
    return queries, [[template_ids(scorer, rng, n) for n in group] for group in lengths]
