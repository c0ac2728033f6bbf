"""Candidates encoded from CUDA graphs: the same bits as by launches, whatever fills a bucket or ran before."""

import random
import sys
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
from emulation.compiled import EmulationError, needs_compiler
from emulation.graphs import ExactProducts, RecordingDevice
from emulation.mistakes import Mistake, plant_in_modules
from support import cached_lab
from support.cached import VARIANTS, cached, mix_encoder
from support.cached_lab import served
from support.graph_lab import serve_from
from support.layouts import CPU
from support.models import random_ids, random_scorer
from support.tokenizer import CLS_ID, SEP_ID

from bandrank.models import text_buckets
from bandrank.models.architectures import BiEncoder
from bandrank.models.architectures.bi_encoder import BiEncoderConfig, Similarity
from bandrank.models.batch import ScoreBatch
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers.pooling import Pooling
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged

pytestmark = needs_compiler
is_near = partial(cached_lab.is_near, size=1)  # representations are of that order
MODULE = "bandrank.models.text_buckets"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> RecordingDevice:
    """A recording device on which the kernels of an encoder run."""
    device = RecordingDevice()
    serve_from(device, monkeypatch)
    return device


def texts(*lengths: int, seed: int = 0) -> Ragged:
    rng = random.Random(seed)
    return Ragged.from_token_ids([random_ids(rng, length) for length in lengths])


# Batches of one bucket, up to 160 rows and 8 texts, also with two codes before each text. The largest comes first, so
# that its rows remain in those that the others do not use.
ALIKE = [texts(*[17] * 8), texts(3, 40, 1, 1, 94, seed=1), texts(97, 42, seed=2), texts(2, *[22] * 6, seed=3)]


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("running", ["at once", "late"])
def test_encoding_and_scoring_replay_graphs_in_turns(variant: str, running: str, device: RecordingDevice) -> None:
    """All batches are enqueued before the first has run. Representations are those of launches, and so are the words
    beside them; scores of stored candidates in between have a graph of their own.
    """
    scorer, stored = mix_encoder(variant), cached(mix_encoder(variant), [9], [5])
    prepared = served(scorer, device)
    device.running = running  # type: ignore[assignment]  # one of the two
    order = (0, 1, 2, 1, 3, 0)
    found = [(prepared.encode_candidates(ALIKE[number]), prepared.score(stored)) for number in order]
    device.drain()

    for number, (encoded, scores) in zip(order, found, strict=True):
        right = scorer.encode_candidates(ALIKE[number])
        assert is_near(encoded.values, right.values)
        assert encoded.cu_seqlens.tolist() == right.cu_seqlens.tolist()
        if encoded.words is not None and right.words is not None:
            assert (encoded.words.pieces == right.words.pieces).all()
        assert is_near(scores / 10, scorer.score(stored) / 10)
    assert (device.captures, device.replays) == (2, 2 * len(order))


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_representation_depends_on_neither_company_nor_bucket(variant: str, device: RecordingDevice) -> None:
    """With exact products, a text alone has the same bits as among others in a larger bucket."""
    prepared, whole = served(mix_encoder(variant), device), texts(5, 30, 260, 9, 1)
    with ExactProducts():
        together = prepared.encode_candidates(whole)
        for number in range(len(whole)):
            alone = prepared.encode_candidates(whole.part(slice(number, number + 1)))
            torch.testing.assert_close(alone.values, together[number], rtol=0, atol=1e-6)


@torch.inference_mode()
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_a_bi_encoder_replays_texts(pooling: Pooling, device: RecordingDevice) -> None:
    """Candidates, queries, and scores, whose queries are encoded by the same graph."""
    encoder = mix_encoder().config.encoder
    similarity: Similarity = "dot" if pooling == "max" else "cosine"
    config = BiEncoderConfig(encoder, CLS_ID, SEP_ID, pooling=pooling, similarity=similarity, max_tokens=512)
    scorer, copy = (random_scorer(BiEncoder(config), seed=0) for _ in range(2))
    prepared = prepare(copy, device=CPU, dtype=torch.float32, graphs=device)
    device.running = "late"
    found = [prepared.encode_candidates(batch) for batch in (*ALIKE, ALIKE[0])] + [prepared.encode_queries(ALIKE[1])]
    device.drain()
    stored = ScoreBatch(ALIKE[1], scorer.encode_candidates(texts(*[9] * 10)), 2 * np.arange(6))
    device.running = "at once"

    for encoded, batch in zip(found, [*ALIKE, ALIKE[0], ALIKE[1]], strict=True):
        assert is_near(encoded.values, scorer.encode_candidates(batch).values)
    assert is_near(prepared.score(stored), scorer.score(stored))
    assert (device.captures, device.replays) == (1, len(found) + 1)
    assert prepared.why_no_graphs() is None


@torch.inference_mode()
def test_what_has_no_bucket_is_launched(device: RecordingDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches without texts, without tokens, or with more rows than is worth a graph have no bucket."""
    scorer = mix_encoder()
    products = 300 * scorer.encoder.config.products_per_layer
    monkeypatch.setattr(text_buckets, "MOST_PRODUCTS", products)
    prepared = served(scorer, device)
    for batch in (texts(), Ragged.from_token_ids([[], []]), texts(150, 160)):
        assert torch.equal(prepared.encode_candidates(batch).values, scorer.encode_candidates(batch).values)

    assert device.captures == 0


@torch.inference_mode()
def test_usual_texts_wait_for_no_capture(device: RecordingDevice) -> None:
    scorer = mix_encoder()
    prepared = served(scorer, device)
    prepared.capture_usual(576)
    captures = device.captures
    for batch in (texts(*[29] * 18), texts(200, *[20] * 17)):
        assert is_near(prepared.encode_candidates(batch).values, scorer.encode_candidates(batch).values)

    assert device.captures == captures


MISTAKES = [Mistake("unused-text", "numbers[2] = 0"), Mistake("text-bucket", "$[:1]"), Mistake("text-bucket", "$[1:]")]


@pytest.mark.parametrize("mistake", [None, *MISTAKES], ids=str)
@torch.inference_mode()
def test_a_mistake_is_noticed(mistake: Mistake | None, device: RecordingDevice) -> None:
    """Some buckets differ in one size only. Without a mistake all is right."""
    scorer = mix_encoder()
    house = {MODULE: sys.modules[MODULE]} if mistake is None else plant_in_modules([MODULE], mistake)
    runner: GraphRunner[Ragged] = GraphRunner(house[MODULE].TextBuckets(scorer.compute_texts, scorer.encoder), device)
    try:
        results = [(batch, runner.compute(batch)) for batch in (*ALIKE, texts(*[8] * 16), texts(50), *ALIKE)]
        right = all(found is not None and is_near(found, scorer.launch_texts(batch)) for batch, found in results)
    except (EmulationError, ValueError, RuntimeError, IndexError):
        right = False

    assert right is (mistake is None)
