"""Scorers with full attention on a GPU in half precision: the scores of the CPU in float32, launched and replayed."""

import random

import pytest
import torch
from support.models import random_ids, random_scorer, score_batch, tiny_encoder_config
from support.on_gpu import GPU, awaiting_nothing, needs_gpu
from support.tokenizer import CLS_ID, SEP_ID

from bandrank.models.architectures import BiEncoder, CrossEncoder
from bandrank.models.architectures.bi_encoder import BiEncoderConfig
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers.patterns import FULL
from bandrank.models.prepared import prepare
from bandrank_kernels.windowed_attention.varlen import why_no_varlen

pytestmark = needs_gpu
if torch.cuda.is_available() and why_no_varlen(device=GPU, dtype=torch.float16, head_dim=32) is not None:
    pytest.skip("FlashAttention cannot run here", allow_module_level=True)

ROUNDING = {torch.float16: 0.03, torch.bfloat16: 0.2}
SHAPES = [[9] * 13, [75, 0, 1, 2, 0, 0, 40, 1], [10] * 12, [300, 40], [60] * 50, [7] * 15]


def batch(lengths: list[int], seed: int) -> ScoreBatch:
    """Returns two queries, each with candidates of these lengths."""
    rng = random.Random(seed)
    candidates = [[random_ids(rng, length) for length in lengths] for _ in range(2)]
    return score_batch([random_ids(rng, 5), random_ids(rng, 11)], candidates)


BATCHES = [batch(lengths, seed) for seed, lengths in enumerate(SHAPES)]


def cross_encoder(hidden_size: int, num_heads: int) -> CrossEncoder:
    vocab = tiny_encoder_config().vocab_size
    encoder = EncoderConfig(vocab, hidden_size, 3, num_heads, 2 * hidden_size, 512)
    config = CrossEncoderConfig(encoder=encoder, cls_id=CLS_ID, sep_id=SEP_ID, pattern=FULL)
    return random_scorer(CrossEncoder(config), seed=0)


@torch.inference_mode()
@pytest.mark.parametrize(("hidden_size", "num_heads"), [(384, 12), (768, 12), (144, 3), (640, 20)])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_scores_are_those_of_the_cpu(dtype: torch.dtype, hidden_size: int, num_heads: int) -> None:
    """Replays have the bits of launches, fifty of them in a row; heads of 32, 64 and 48 numbers, and twenty heads."""
    exact = prepare(cross_encoder(hidden_size, num_heads), device=torch.device("cpu"), dtype=torch.float32)
    launched = prepare(cross_encoder(hidden_size, num_heads), device=GPU, dtype=dtype)
    replayed = prepare(cross_encoder(hidden_size, num_heads), device=GPU, dtype=dtype, graphs=True)
    runner = replayed.replay
    assert isinstance(runner, GraphRunner)
    assert (replayed.why_no_kernels, replayed.why_no_graphs()) == (None, None)
    assert replayed.attention == "torch's FlashAttention"
    expected = [exact.score(each) for each in BATCHES]
    results = [(turn % len(BATCHES), replayed.score(BATCHES[turn % len(BATCHES)])) for turn in range(50)]

    for number, scores in results:
        assert torch.equal(scores, results[number][1])
        torch.testing.assert_close(scores.cpu(), expected[number], rtol=0, atol=ROUNDING[dtype])
    for each, right in zip(BATCHES, expected, strict=True):
        torch.testing.assert_close(launched.score(each).float().cpu(), right, rtol=0, atol=ROUNDING[dtype])
    assert replayed.why_no_graphs() is None
    assert 1 < len(runner) < len(BATCHES)


@torch.inference_mode()
def test_a_batch_starts_while_the_gpu_is_busy() -> None:
    """Once its graph is captured, the host waits for nothing."""
    prepared = prepare(cross_encoder(384, 12), device=GPU, dtype=torch.float16, graphs=True)
    expected = prepared.begin(BATCHES[0])()
    with awaiting_nothing():
        scores = prepared.begin(BATCHES[0])

    assert torch.equal(scores(), expected)


@torch.inference_mode()
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("num_heads", [12, 4])  # of 32 and of 96 numbers
def test_texts_have_the_vectors_of_the_cpu(num_heads: int, pooling: str) -> None:
    vocab = tiny_encoder_config().vocab_size
    config = BiEncoderConfig(
        EncoderConfig(vocab, 384, 3, num_heads, 768, 512), CLS_ID, SEP_ID, max_tokens=512, pooling=pooling
    )
    exact, half = (random_scorer(BiEncoder(config), seed=0) for _ in range(2))
    texts = BATCHES[1].candidates
    right = prepare(exact, device=torch.device("cpu"), dtype=torch.float32).encode_candidates(texts).values
    prepared = prepare(half, device=GPU, dtype=torch.float16)
    vectors = prepared.encode_candidates(texts).values.float().cpu()

    assert prepared.why_no_kernels is None
    assert (vectors - right).norm() <= 0.01 * right.norm()
