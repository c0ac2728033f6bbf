"""Stored candidates scored from graphs that CUDA captures and replays on a GPU."""

import random
from typing import get_args

import numpy as np
import pytest
import torch
from support.cached import VARIANTS, cached, mix_encoder
from support.models import random_ids, random_scorer
from support.on_gpu import GPU, awaiting_nothing, needs_gpu
from support.tokenizer import CLS_ID, SEP_ID

from bandrank.models.architectures import BiEncoder, MixEncoder
from bandrank.models.architectures.bi_encoder import BiEncoderConfig
from bandrank.models.batch import ScoreBatch
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers.pooling import Pooling
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.models.ragged import Ragged

pytestmark = needs_gpu

SIZES = [(10, 1000), (30, 40), (4, 520), (10, 33), (100, 7)]  # (tokens of the query, number of candidates)


def served(variant: str, dtype: torch.dtype) -> PreparedScorer:
    """Returns a random scorer that replays graphs on the GPU."""
    scorer = mix_encoder(variant, num_layers=6)
    copy = MixEncoder(scorer.config)
    copy.load_state_dict(scorer.state_dict())
    return prepare(copy, device=GPU, dtype=dtype, graphs=True)


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float16, 0.1), (torch.float32, 2e-3)])
def test_replays_have_the_bits_of_launches(variant: str, dtype: torch.dtype, rounding: float) -> None:
    """Fifty replays of batches in turns run without a wait in between. The CPU's scores differ by the rounding of sums
    in the dtype.
    """
    scorer, prepared = mix_encoder(variant, num_layers=6), served(variant, dtype)
    assert prepared.why_no_graphs() is None
    runner = prepared.replay
    assert isinstance(runner, GraphRunner)
    batches = [cached(scorer, [tokens], [count], seed) for seed, (tokens, count) in enumerate(SIZES)]
    launched = [runner.compute(batch, capture=False) for batch in batches]
    replayed = [(turn % len(batches), runner.compute(batches[turn % len(batches)])) for turn in range(50)]

    for number, scores in replayed:
        expected = launched[number]
        assert scores is not None
        assert expected is not None
        assert torch.equal(scores, expected)
    for scores, batch in zip(launched, batches, strict=True):
        assert scores is not None
        torch.testing.assert_close(scores.cpu(), scorer.score(batch), rtol=0, atol=rounding)
    assert runner.obstacle is None
    assert len(runner) == len(batches) - 1  # two of the sizes share a bucket


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float16, 0.05), (torch.float32, 1e-3)])
def test_candidates_are_encoded_by_replays(variant: str, dtype: torch.dtype, rounding: float) -> None:
    """Representations are those of the CPU up to rounding, again and again; stored candidates are scored between."""
    scorer, prepared = mix_encoder(variant, num_layers=6), served(variant, dtype)
    stored, rng = cached(scorer, [9], [40]), random.Random(0)
    lengths = ([70] * 100, [3, 250, 1], [20] * 300)
    batches = [Ragged.from_token_ids([random_ids(rng, length) for length in each]) for each in lengths]
    found = [(prepared.encode_candidates(batches[turn % 3]), prepared.score(stored)) for turn in range(12)]

    right = [scorer.encode_candidates(batch).values for batch in batches]
    for turn, (encoded, scores) in enumerate(found):
        torch.testing.assert_close(encoded.values.cpu(), right[turn % 3], rtol=0, atol=rounding)
        assert torch.equal(scores, found[0][1])
    assert isinstance(prepared.replay, GraphRunner)
    assert (len(prepared.replay), prepared.why_no_graphs()) == (4, None)


@torch.inference_mode()
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_a_bi_encoder_replays_texts(pooling: Pooling) -> None:
    """The vectors of texts, and the scores of stored ones, are those of the CPU up to rounding."""
    config = BiEncoderConfig(mix_encoder("c").config.encoder, CLS_ID, SEP_ID, pooling=pooling, max_tokens=512)
    scorer, copy = (random_scorer(BiEncoder(config), seed=0) for _ in range(2))
    prepared, rng = prepare(copy, device=GPU, dtype=torch.float16, graphs=True), random.Random(0)
    batches = [
        Ragged.from_token_ids([random_ids(rng, length) for length in each]) for each in ([70] * 100, [3, 250, 1])
    ]
    stored = ScoreBatch(batches[1], scorer.encode_candidates(batches[0]), 25 * np.array([0, 1, 2, 4]))
    right = [scorer.encode_candidates(batch).values for batch in batches]
    for turn in range(6):
        encoded = prepared.encode_candidates(batches[turn % 2]).values.cpu()
        torch.testing.assert_close(encoded, right[turn % 2], rtol=0, atol=0.02)
        torch.testing.assert_close(prepared.begin(stored)(), scorer.score(stored), rtol=0, atol=0.02)

    assert prepared.why_no_graphs() is None


@torch.inference_mode()
def test_a_batch_starts_while_the_gpu_is_busy() -> None:
    """The host waits for neither of two queries, and the scores are those of an idle GPU."""
    prepared, batch = served("b", torch.float16), cached(mix_encoder("b", num_layers=6), [10, 5], [40, 300])
    assert prepared.overlaps
    expected = prepared.begin(batch)()
    with awaiting_nothing():
        scores = prepared.begin(batch)

    assert torch.equal(scores(), expected)
