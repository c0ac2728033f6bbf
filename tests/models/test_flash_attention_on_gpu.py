"""Scorers with full attention on a GPU in half precision: the scores of the CPU in float32, launched and replayed."""

import random

import pytest
import torch
from support.models import random_ids, random_scorer, score_batch, tiny_bi_encoder, tiny_encoder_config
from support.on_gpu import GPU, awaiting_nothing, needs_gpu
from support.scorers import loaded
from support.tokenizer import CLS_ID, SEP_ID
from torch.profiler import ProfilerActivity, profile

from bandrank.models.architectures import CrossEncoder
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.graphs import GraphRunner
from bandrank.models.prepared import prepare
from bandrank_kernels.launch import device_capability
from bandrank_training.dense import DenseIndex, read_candidates
from bandrank_training.placement import CPU, Placement
from bandrank_training.vectors import VectorLoss

pytestmark = needs_gpu
if torch.cuda.is_available() and device_capability(GPU) < (8, 0):
    pytest.skip("FlashAttention cannot run here", allow_module_level=True)

ROUNDING = {torch.float16: 0.02, torch.bfloat16: 0.15}
SHAPES = [[9] * 13, [75, 0, 1, 2, 0, 0, 40, 1], [10] * 12, [300, 40], [60] * 50, [7] * 15]


def batch(lengths: list[int], seed: int) -> ScoreBatch:
    """Returns two queries, each with candidates of these lengths."""
    rng = random.Random(seed)
    candidates = [[random_ids(rng, length) for length in lengths] for _ in range(2)]
    return score_batch([random_ids(rng, 5), random_ids(rng, 11)], candidates)


BATCHES = [batch(lengths, seed) for seed, lengths in enumerate(SHAPES)]


@torch.inference_mode()
@pytest.mark.parametrize(("hidden_size", "num_heads"), [(384, 12), (768, 12), (144, 3), (640, 20)])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_scores_are_those_of_the_cpu(dtype: torch.dtype, hidden_size: int, num_heads: int) -> None:
    """Heads of 32, 64 and 48 numbers, twenty heads; fifty replays in a row repeat their bits, and the host waits for
    none.
    """
    encoder = EncoderConfig(tiny_encoder_config().vocab_size, hidden_size, 3, num_heads, 2 * hidden_size, 512)
    config = CrossEncoderConfig(encoder=encoder, cls_id=CLS_ID, sep_id=SEP_ID)
    exact, eager, graphed = (random_scorer(CrossEncoder(config), seed=0) for _ in range(3))
    expected = [prepare(exact, device=torch.device("cpu"), dtype=torch.float32).score(each) for each in BATCHES]
    launched, replayed = (
        prepare(scorer, device=GPU, dtype=dtype, graphs=graphs) for scorer, graphs in ((eager, False), (graphed, True))
    )
    runner = replayed.replay
    assert isinstance(runner, GraphRunner)
    results = [replayed.score(BATCHES[turn % len(BATCHES)]).cpu() for turn in range(50)]
    with awaiting_nothing():
        begun = replayed.begin(BATCHES[0])

    assert replayed.attention == "torch's FlashAttention"
    assert (replayed.why_no_kernels, replayed.why_no_graphs()) == (None, None)
    assert 1 < len(runner) < len(BATCHES)
    assert torch.equal(begun(), results[0])
    for turn, scores in enumerate(results):
        assert torch.equal(scores, results[turn % len(BATCHES)])
    for each, right, scores in zip(BATCHES, expected, results, strict=False):
        torch.testing.assert_close(scores, right, rtol=0, atol=ROUNDING[dtype])
        torch.testing.assert_close(launched.score(each).float().cpu(), right, rtol=0, atol=ROUNDING[dtype])


@torch.inference_mode()
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_texts_have_the_vectors_of_the_cpu(pooling: str) -> None:
    """With heads of eight numbers."""
    exact, half = (tiny_bi_encoder(pooling=pooling) for _ in range(2))
    texts = BATCHES[1].candidates
    right = prepare(exact, device=torch.device("cpu"), dtype=torch.float32).encode_candidates(texts).values
    prepared = prepare(half, device=GPU, dtype=torch.float16)

    assert prepared.why_no_kernels is None
    assert (prepared.encode_candidates(texts).values.float().cpu() - right).norm() <= 0.01 * right.norm()


def test_vectors_to_search_and_to_learn_are_those_of_the_cpu() -> None:
    model, texts = loaded(tiny_bi_encoder()), ["he is the man", "they were"]
    right, made = (DenseIndex(model, texts, each).vectors for each in (CPU, Placement(GPU, torch.float32)))
    model.scorer.to(GPU)
    learnt = VectorLoss(model, 100)._vectors({}, texts, read_candidates).cpu().numpy()

    assert max(abs(made - right).max(), abs(learnt - right).max()) < 1e-3


def test_training_in_bfloat16_has_the_gradients_of_the_cpu() -> None:
    """The weights are in float32, but autocast makes queries, keys and values that FlashAttention takes."""
    encoder = EncoderConfig(tiny_encoder_config().vocab_size, 384, 3, 12, 768, 512)
    config = CrossEncoderConfig(encoder=encoder, cls_id=CLS_ID, sep_id=SEP_ID)
    exact, trained = (random_scorer(CrossEncoder(config), seed=0) for _ in range(2))
    trained.to(GPU)
    with torch.autocast("cuda", torch.bfloat16), profile(activities=[ProfilerActivity.CPU]) as seen:
        scores = trained.score(BATCHES[1]).float()
    name = "encoder.layers.1.qkv.weight"
    right, gradient = (
        torch.autograd.grad(out.square().sum(), dict(scorer.named_parameters())[name])[0].cpu()
        for scorer, out in ((exact, exact.score(BATCHES[1])), (trained, scores))
    )

    assert any("_flash_attention_forward" in event.key for event in seen.key_averages())
    torch.testing.assert_close(scores.detach().cpu(), exact.score(BATCHES[1]).detach(), rtol=0, atol=0.15)
    assert (gradient - right).norm() <= 0.1 * right.norm()
