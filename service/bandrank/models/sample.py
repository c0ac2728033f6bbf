"""A request of random tokens, to observe a scorer before there are real requests."""

import numpy as np
import torch

from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_kernels.arrays import offsets

TOKENS, QUERY_TOKENS = 75, 10


def sample_request(scorer: Scorer, candidates: int = 16) -> ScoreBatch:
    """A query and its candidates, as token ids: always the same for the same vocabulary and limits."""
    numbers = np.random.default_rng(0)
    of_query = min(QUERY_TOKENS, scorer.query_template.max_tokens)
    length = min(TOKENS, scorer.candidate_limit(of_query))

    def texts(count: int, tokens: int, reader: Scorer) -> Ragged:
        ids = numbers.integers(reader.encoder.config.vocab_size, size=count * tokens)
        return Ragged(torch.from_numpy(ids), tokens * np.arange(count + 1))

    return ScoreBatch(texts(1, of_query, scorer.sides[-1]), texts(candidates, length, scorer), offsets([candidates]))
