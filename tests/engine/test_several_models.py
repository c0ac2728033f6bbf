"""Several models over one engine: each answers as if it were alone, and none holds the others up."""

import asyncio
import random
import threading
import time

import pytest
from support.models import random_text, tiny_bi_encoder, tiny_cross_encoder
from support.precomputing import tiny_mix_encoder
from support.scorers import WatchedScorer, encoded_lookup, loaded, lookup
from support.serving import files_of

from bandrank.engine.ranking import Ranking
from bandrank.engine.served import Models
from bandrank.errors import UnknownModel
from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.patterns import sparse
from bandrank.serving import LoadedScorers, assemble
from bandrank.settings import Settings

TOLERANCE = 1e-5  # between a candidate's score alone and in a batch, in float32
SETTINGS = Settings(device="cpu", max_batch_rows=400, cascade_depth=5, patience=1000)


def three_models() -> list[LoadedScorers]:
    """A cross-encoder, a bi-encoder, and a cascade of a MixEncoder and another cross-encoder."""
    return [
        files_of(tiny_cross_encoder(seed=1), name="full"),
        files_of(tiny_bi_encoder(seed=2), name="bi"),
        files_of(tiny_cross_encoder(pattern=sparse(4), seed=3), fast=tiny_mix_encoder(seed=4), name="both", depth=5),
    ]


def scores_of(ranking: Ranking) -> dict[int, float]:
    return {candidate.index: candidate.score for candidate in ranking.candidates}


async def test_each_model_answers_under_mixed_load_as_it_does_alone() -> None:
    """Ninety requests at once, to three models, get the scores, strategies and stages that an idle service gives."""
    rng = random.Random(7)
    requests = [
        (name, random_text(rng, 4), [random_text(rng, rng.randint(0, 40)) for _ in range(rng.randint(1, 12))])
        for _ in range(30)
        for name in ("full", "bi", "both")
    ]
    rng.shuffle(requests)
    serving = assemble(three_models(), SETTINGS)
    models = serving.models
    try:
        alone = [await models.find(name).rank(query, texts) for name, query, texts in requests]
        together = await asyncio.gather(*(models.find(name).rank(query, texts) for name, query, texts in requests))
    finally:
        await serving.models.close()

    for (name, _, texts), one, other in zip(requests, alone, together, strict=True):
        assert scores_of(other) == pytest.approx(scores_of(one), abs=TOLERANCE)
        assert sorted(scores_of(other)) == list(range(len(texts)))
        expected = {"full": "accurate", "bi": "fast", "both": "accurate" if len(texts) <= 5 else "cascade"}
        assert other.strategy == expected[name]
    samples = serving.models.default.engine.metrics.registry.get_sample_value
    assert samples("bandrank_dropped_tasks_total", {"reason": "expired"}) == 0
    assert samples("bandrank_failed_batches_total") == 0


async def test_models_of_unlike_scorers_share_no_batch() -> None:
    seen: list[tuple[str, int]] = []

    def watch(name: str) -> WatchedScorer:
        return WatchedScorer(lookup(man=1.0), lambda batch: seen.append((name, len(batch.candidates))))

    serving = assemble([files_of(watch("a"), name="a"), files_of(watch("b"), name="b")], SETTINGS)
    asked = [serving.models.find(name).rank("who", ["man", "he"]) for name in "abab"]
    rankings = await asyncio.gather(*asked)
    await serving.models.close()

    assert all(scores_of(ranking) == {0: 1.0, 1: 0.0} for ranking in rankings)
    assert sum(count for name, count in seen if name == "a") == sum(count for name, count in seen if name == "b") == 4


async def test_a_small_request_to_one_model_passes_a_large_one_to_another() -> None:
    """The models share a queue, so the small request does not wait for all of the large one."""
    started = threading.Event()
    order: list[str] = []

    def slow(batch: ScoreBatch) -> None:
        started.set()
        order.extend(["large"] * len(batch.candidates))
        time.sleep(0.002)

    large = WatchedScorer(lookup(), slow)
    small = WatchedScorer(lookup(), lambda batch: order.extend(["small"] * len(batch.candidates)))
    settings = Settings(device="cpu", max_batch_rows=8)
    serving = assemble([files_of(large, name="large"), files_of(small, name="small")], settings)
    texts = [" ".join(["man"] * (1 + number % 3)) + f" {number}" for number in range(200)]
    first = asyncio.ensure_future(serving.models.find("large").rank("who", texts))
    await asyncio.to_thread(started.wait)
    await serving.models.find("small").rank("who", ["he"])
    passed = order.index("small")
    await first
    await serving.models.close()

    assert passed < 100 < len(order)


async def test_models_that_name_the_same_scorer_share_it() -> None:
    """The models share weights, lane and cache: a text that one of them encoded is a hit for the other."""
    shared = loaded(encoded_lookup(man=3.0), name="shared")
    alone = LoadedScorers("alone", shared)
    cascade = LoadedScorers("cascade", loaded(lookup(man=1.0), name="accurate"), shared)
    serving = assemble([alone, cascade], SETTINGS)
    await serving.models.find("alone").rank("who", ["man", "he"])
    ranking = await serving.models.find("cascade").rank("who", ["man", "he"], strategy="fast")
    await serving.models.close()

    assert len(serving.models.default.engine.text_scorers) == 2
    assert [(report.cache_hits, report.cache_misses) for report in ranking.reports] == [(2, 0)]


async def test_a_model_is_found_by_its_names() -> None:
    """A model goes by its name, the end of its path and its scorers' names; "default" is the first model."""
    files = [
        LoadedScorers("org/first", loaded(lookup(), name="org/first")),
        LoadedScorers("second", loaded(lookup(), name="/models/base"), loaded(encoded_lookup(), name="mix")),
    ]
    serving = assemble(files, SETTINGS)
    models: Models = serving.models
    await serving.models.close()

    assert [models.find(name).name for name in (None, "", "default", "org/first", "first")] == ["org/first"] * 5
    assert [models.find(name).name for name in ("second", "base", "mix")] == ["second"] * 3
    with pytest.raises(UnknownModel, match="models: org/first, second"):
        models.find("third")
