"""MixEncoders in sizes that have kernels, and batches of queries with stored candidates."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from support.models import random_ids, tiny_encoder_config
from support.precomputing import tiny_mix_encoder, with_words
from support.tokenizer import CLS_ID

from bandrank.models.architectures import MixEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.lexical import LexicalConfig
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets

HIDDEN_SIZE = 64  # two heads of a size that has kernels
VARIANTS: dict[str, dict[str, Any]] = {
    # Like mix-b: three interactions, and the bi-encoder's cosine and shared words in the score.
    "b": {
        "paper": "b",
        "strategy": "C",
        "similarity": "scaled_dot",
        "interaction_weight": 0.5,
        "bi_encoder_weight": 20.0,
        "bi_encoder_bias": -14.0,
        "lexical": LexicalConfig(20.0, most_words=24),
    },
    # Two embeddings per candidate, and only the interaction in the score.
    "c": {"paper": "c", "similarity": "cosine"},
}


@cache
def mix_encoder(variant: str = "b", num_layers: int = 3) -> MixEncoder:
    """A random MixEncoder without gradients."""
    encoder = replace(tiny_encoder_config(), hidden_size=HIDDEN_SIZE, num_heads=2, num_layers=num_layers)
    scorer = tiny_mix_encoder(num_layers=num_layers, encoder=encoder, **VARIANTS[variant])
    return (scorer if scorer.lexical is None else with_words(scorer)).requires_grad_(requires_grad=False)


def cached(scorer: MixEncoder, queries: Sequence[int], counts: Sequence[int], seed: int = 0) -> ScoreBatch:
    """A batch whose queries have these numbers of tokens, and these numbers of random candidate representations."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    count = scorer.config.num_embeddings
    ids = [[CLS_ID, *random_ids(rng, length - 2)] for length in queries]
    texts = Ragged.from_token_ids([random_ids(rng, rng.randrange(30)) for _ in range(sum(counts))])
    words = None if scorer.lexical is None else scorer.lexical.words(texts)
    rows = torch.randn(len(texts) * count, HIDDEN_SIZE, generator=generator)
    return ScoreBatch(Ragged.from_token_ids(ids), Ragged(rows, offsets([count] * len(texts)), words), offsets(counts))
