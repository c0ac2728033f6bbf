"""Scores are those that were recorded before the engine and the encoder were rebuilt, for every architecture and
strategy, to rounding: even on equal processors a library may add up in another order, by the size of their caches.
"""

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from support.models import as_served, score_batch
from support.recorded import DEPTH, QUERIES, demo_texts, draw_by_name, recorded
from support.variants import VARIANTS, random_texts

from bandrank.engine.ranking import Ranking
from bandrank.serving import assemble, load_models
from bandrank.settings import Settings

RECORDED = recorded()
TOLERANCE = 3e-4  # of scores of six layers, between -12 and 12; without AVX-512, 1.1e-4 was seen


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """With several threads, products may be split differently and so round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_variant_is_recorded() -> None:
    """Every recorded variant still exists; a new one needs no record."""
    assert RECORDED["architectures"].keys() <= VARIANTS.keys()


@pytest.mark.parametrize("variant", RECORDED["architectures"])
def test_scores_of_an_architecture(variant: str) -> None:
    """Each weight is drawn at random, seeded by its name, and the scorer is prepared for a CPU in float32."""
    scorer = VARIANTS[variant]()
    draw_by_name(scorer)
    with torch.inference_mode():
        scores = as_served(scorer)(score_batch(*random_texts(scorer))).tolist()

    assert scores == pytest.approx(RECORDED["architectures"][variant], abs=1e-4)


@pytest.mark.parametrize("model", ["sparse-w4 over mix-b", "mix-b"])
def test_rankings_of_a_strategy(model: str) -> None:
    """The shipped scorers rank sixty passages: order, scores, stages and token counts are compared."""
    rankings = _rankings(model)
    for (strategy, count, query), expected in _recorded_rankings(model).items():
        ranking = rankings[strategy, count, query]
        by_index = {candidate.index: candidate.score for candidate in ranking.candidates}
        stages = [stage for stage, num_candidates in expected["stages"].items() for _ in range(num_candidates)]

        assert (ranking.strategy, ranking.num_tokens) == (expected["strategy"], expected["tokens"])
        assert [by_index[index] for index in expected["indices"]] == pytest.approx(expected["scores"], abs=TOLERANCE)
        assert sorted(by_index) == sorted(expected["indices"])
        assert [candidate.stage for candidate in ranking.candidates] == stages


def _recorded_rankings(model: str) -> dict[tuple[str, int, str], Any]:
    """What is recorded for a model, by strategy, number of candidates and query."""
    recorded_for = {}
    for ranking in RECORDED["rankings"]:
        for asked in ranking["asked"].get(model, ()):
            strategy, count = asked.split()
            recorded_for[strategy, int(count), ranking["query"]] = ranking
    return recorded_for


@cache
def _rankings(model: str) -> dict[tuple[str, int, str], Ranking]:
    """The rankings by strategy, number of candidates and query."""
    rankings = {}
    name = model.split(maxsplit=1)[0]  # "sparse-w4 over mix-b" brings mix-b along
    settings = Settings(device="cpu", dtype="float32", model=name, cascade_depth=DEPTH)

    async def rank() -> None:
        serving = assemble(load_models(settings), settings)
        for strategy, count, query in _recorded_rankings(model):
            assert query in QUERIES
            texts = demo_texts()[:count]
            rankings[strategy, count, query] = await serving.models.default.rank(query, texts, strategy=strategy)
        await serving.models.close()

    asyncio.run(rank())
    return rankings
