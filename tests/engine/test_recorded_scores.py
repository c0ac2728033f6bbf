"""Scores are those that were recorded before the engine and the encoder were rebuilt, for every architecture and
strategy.

On the processor and with the torch that they were recorded with they are equal to the bit; elsewhere, where a library
may add up in another order, to rounding.
"""

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from support.models import as_served, score_batch
from support.recorded import DEPTH, QUERIES, demo_texts, draw_by_name, machine, recorded
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


def assert_recorded(scores: list[float], expected: list[float], *, tolerance: float) -> None:
    """Checks equality on the machine of the record, and agreement up to rounding elsewhere."""
    assert scores == (expected if machine() == RECORDED["machine"] else pytest.approx(expected, abs=tolerance))


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

    assert_recorded(scores, RECORDED["architectures"][variant], tolerance=1e-4)


@pytest.mark.parametrize("model", RECORDED["rankings"])
def test_rankings_of_a_strategy(model: str) -> None:
    """The shipped scorers rank sixty passages: order, scores, stages and token counts are compared."""
    rankings = _rankings(model)
    for asked, expected in RECORDED["rankings"][model].items():
        strategy, count, query = asked.split(" ", 2)
        ranking = rankings[strategy, int(count), query]
        by_index = {candidate.index: candidate.score for candidate in ranking.candidates}

        assert (ranking.strategy, ranking.num_tokens) == (expected["strategy"], expected["tokens"])
        assert_recorded([by_index[index] for index in expected["indices"]], expected["scores"], tolerance=TOLERANCE)
        assert sorted(by_index) == sorted(expected["indices"])
        if machine() == RECORDED["machine"]:
            assert [candidate.index for candidate in ranking.candidates] == expected["indices"]
            assert [candidate.stage for candidate in ranking.candidates] == expected["stages"]


@cache
def _rankings(model: str) -> dict[tuple[str, int, str], Ranking]:
    """The rankings by strategy, number of candidates and query."""
    asked: dict[Any, Any] = {
        (strategy, int(count), query): None
        for strategy, count, query in (key.split(" ", 2) for key in RECORDED["rankings"][model])
    }
    name = model.split(maxsplit=1)[0]  # "sparse-w4 over mix-b" brings mix-b along
    settings = Settings(device="cpu", dtype="float32", model=name, cascade_depth=DEPTH)

    async def rank() -> None:
        serving = assemble(load_models(settings), settings)
        for strategy, count, query in asked:
            assert query in QUERIES
            texts = demo_texts()[:count]
            asked[strategy, count, query] = await serving.models.default.rank(query, texts, strategy=strategy)
        await serving.models.close()

    asyncio.run(rank())
    return asked
