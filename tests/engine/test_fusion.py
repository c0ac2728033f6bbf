"""An accurate scorer adds to the fast one's scores: candidates rank by the sum, whichever stages a request asks for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.scorers import encoded_lookup, lookup
from support.serving import files_of, served

from bandrank.engine.ranking import Ranking
from bandrank.engine.served import ServedModel
from bandrank.errors import BadSetting
from bandrank.models.fusion import Fusion
from bandrank.settings import Settings

WORDS = ("man", "she", "you", "he", "no")
FAST = {"man": 1.0, "she": 4.0, "you": 3.0, "he": 2.0, "no": -1.0}
ACCURATE = {"man": 9.0, "she": 1.0, "you": 6.0, "he": 0.0, "no": 20.0}
WEIGHT = 2.0


@asynccontextmanager
async def fused(depth: int) -> AsyncIterator[ServedModel]:
    """A model whose accurate stage adds WEIGHT times the FAST scores to the ACCURATE ones."""
    settings = Settings(device="cpu", cascade_depth=depth)
    fusion = Fusion("fast", WEIGHT)
    async with served(lookup(**ACCURATE), fast=encoded_lookup(**FAST), settings=settings, fusion=fusion) as model:
        yield model


def scores(ranking: Ranking) -> dict[str, float]:
    return {WORDS[candidate.index]: candidate.score for candidate in ranking.candidates}


@pytest.mark.parametrize("strategy", ["accurate", "auto"])
async def test_all_candidates_get_the_sum(strategy: str) -> None:
    """Both stages score every candidate, and the answer reports both."""
    async with fused(depth=5) as model:
        ranking = await model.rank("who", WORDS, strategy=strategy)

    assert list(scores(ranking).items()) == [("no", 18.0), ("you", 12.0), ("man", 11.0), ("she", 9.0), ("he", 4.0)]
    assert ranking.strategy == "accurate"
    assert [(stage.stage, stage.num_candidates) for stage in ranking.reports] == [("fast", 5), ("accurate", 5)]


async def test_survivors_of_a_cascade_get_the_sum() -> None:
    """The other candidates follow below the survivors, spaced as the fast stage spaced them."""
    async with fused(depth=3) as model:
        ranking = await model.rank("who", WORDS, strategy="cascade")

    assert list(scores(ranking).items()) == [("you", 12.0), ("she", 9.0), ("he", 4.0), ("man", 4.0), ("no", 2.0)]


async def test_the_fast_strategy_gives_the_fast_scores_alone() -> None:
    async with fused(depth=3) as model:
        assert scores(await model.rank("who", WORDS, strategy="fast")) == FAST


def test_the_accurate_scorer_is_not_served_alone() -> None:
    """Alone, the accurate scorer would rank by only part of the score."""
    with pytest.raises(BadSetting, match="adds to the scores of mix-b"):
        files_of(lookup(**ACCURATE), fusion=Fusion("mix-b"))
