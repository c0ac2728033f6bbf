"""Scorers whose attention torch's FlashAttention computes have the scores of plain torch, launched and replayed."""

import random
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from emulation.graphs import RecordingDevice
from support.models import random_ids, random_scorer, score_batch, tiny_cross_encoder, tiny_encoder_config
from support.modernbert import tiny_sequence_cross_encoder
from support.tokenizer import CLS_ID, SEP_ID
from support.variants import VARIANTS, random_texts
from support.varlen import serve_flash

from bandrank.models.architectures import CrossEncoder
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.backends import why_no_cuda
from bandrank.models.graphs import MAX_GRAPHS, GraphRunner
from bandrank.models.layers.packing import PackedInputs, PackedTokens, pack
from bandrank.models.layers.patterns import FULL
from bandrank.models.packed_buckets import MAX_ROWS
from bandrank.models.prepared import prepare
from bandrank.models.usual import usual_texts
from bandrank_kernels.arrays import offsets
from bandrank_kernels.windowed_attention import Capacity, JoinedPlan, PackedRows, plan_attention
from bandrank_kernels.windowed_attention.capacity import row_bucket

CPU = torch.device("cpu")
CLOSE = 2e-5  # another order of sums in float32, through a few layers


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes "auto" choose FlashAttention, computed slowly."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)  # a GPU has no such layout of weights
    serve_flash(monkeypatch)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_are_those_of_plain_torch(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of a scorer's attention is FlashAttention's: pairs, texts, windows of some layers, or nothing."""
    plain, scorer = (VARIANTS[variant]() for _ in range(2))
    batch = score_batch(*random_texts(scorer))
    with torch.inference_mode():
        expected = prepare(plain, device=CPU, dtype=torch.float32, backend="vectorized")(batch)
        serve_flash(monkeypatch)
        scores = prepare(scorer, device=CPU, dtype=torch.float32)(batch)

    torch.testing.assert_close(scores, expected, rtol=CLOSE, atol=CLOSE)


def model() -> CrossEncoder:
    """A cross-encoder with full attention."""
    encoder = replace(tiny_encoder_config(), hidden_size=64, num_heads=2)
    config = CrossEncoderConfig(
        encoder=encoder, cls_id=CLS_ID, sep_id=SEP_ID, pattern=FULL, max_tokens=512, max_query_tokens=64
    )
    return random_scorer(CrossEncoder(config), seed=0).requires_grad_(requires_grad=False)


def packed(queries: Sequence[int], candidates: Sequence[Sequence[int]]) -> PackedTokens:
    """A packed batch of random texts of these lengths, [SEP] not counted."""
    ids = partial(random_ids, random.Random(0))
    batch = score_batch([*map(ids, queries)], [[*map(ids, group)] for group in candidates])
    return pack(batch, FULL, cls_id=CLS_ID, sentence_token=None)


# Of one bucket but for the last: several queries, empty candidates, single tokens, lengths that differ.
BATCHES = [
    packed([5], [[9] * 12]),
    packed([3, 4], [[75, 0, 1, 2, 0, 0], [60, 1, 2]]),
    packed([4] * 9, [[15]] * 9),
    packed([2], [[8] * 15]),
    packed([5], [[300]]),
]


@pytest.mark.usefixtures("flash")
@torch.inference_mode()
def test_replays_have_the_bits_of_launches() -> None:
    """One graph serves all batches of a bucket, whatever came before; plain torch's scores differ by rounding."""
    device, plain = RecordingDevice(), model()
    expected = [plain.compute(_inputs(batch)) for batch in BATCHES]
    prepared = prepare(model(), device=CPU, dtype=torch.float32, graphs=device)
    runner = prepared.replay
    assert isinstance(runner, GraphRunner)
    for number in (0, 1, 2, 3, 4, 1, 0):
        scores = runner.compute(BATCHES[number])
        launched = runner.compute(BATCHES[number], capture=False)
        assert scores is not None
        assert launched is not None
        assert torch.equal(scores, launched)
        torch.testing.assert_close(scores, expected[number], rtol=0, atol=CLOSE)

    assert (prepared.why_no_kernels, prepared.why_no_graphs()) == (None, None)
    assert prepared.attention == "torch's FlashAttention"
    assert len(runner) == device.captures == len({_graph_of(batch.rows) for batch in BATCHES}) == 2


def _inputs(batch: PackedTokens) -> PackedInputs:
    """The inputs on the device, for plain torch."""
    plan = plan_attention(batch.rows, FULL, device=CPU, dtype=torch.float32, head_dim=32, backend="vectorized")
    return PackedInputs.of(batch, plan, CPU)


@pytest.mark.usefixtures("flash")
def test_layers_with_windows_are_not_captured() -> None:
    """Only their global layers see whole texts; the plans of the others hold the tables of one batch."""
    encoder = tiny_sequence_cross_encoder().encoder
    assert encoder.windows[-1] is not None
    scorer = tiny_cross_encoder()
    scorer.encoder = encoder

    assert why_no_cuda(tiny_cross_encoder(), FULL) is None
    assert why_no_cuda(scorer, FULL) is not None


@pytest.mark.parametrize(("query", "mean", "count"), [(1, 40, 20), (11, 77, 100), (30, 130, 64), (9, 200, 33)])
def test_a_usual_request_has_a_graph(query: int, mean: int, count: int) -> None:
    """Candidates of up to twice the mean length; layouts fill their buckets and are few."""
    layouts = list(usual_texts(MAX_ROWS))
    rng = np.random.default_rng(0)
    lengths = rng.integers(mean // 2, 2 * mean, count)
    rows = PackedRows(offsets([query + 1] * count), offsets(lengths), np.arange(count))

    assert _graph_of(rows) in set(map(_graph_of, layouts)) or Capacity.of(rows).num_rows > MAX_ROWS
    assert len(set(map(_graph_of, layouts))) == len(layouts) <= MAX_GRAPHS - 100
    assert all(row_bucket(each.num_rows) == each.num_rows for each in layouts)


def _graph_of(rows: PackedRows) -> Hashable:
    capacity = Capacity.of(rows)
    signature = JoinedPlan(rows, device=CPU, capacity=capacity).signature
    return capacity.num_rows, capacity.num_candidates, signature
