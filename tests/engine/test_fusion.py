"""An accurate scorer that adds to the fast one's scores: ranked by the sum, whichever stages a request asks for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.models import loaded
from support.scorers import encoded_lookup, lookup

from bandrank.engine.assembly import StageModels
from bandrank.engine.cascade import Strategy
from bandrank.engine.reranker import Ranking, Reranker
from bandrank.errors import BadSetting
from bandrank.models.fusion import Fusion
from bandrank.settings import Settings

pytestmark = pytest.mark.anyio

WORDS = ("man", "she", "you", "he", "no")
FAST = {"man": 1.0, "she": 4.0, "you": 3.0, "he": 2.0, "no": -1.0}
ACCURATE = {"man": 9.0, "she": 1.0, "you": 6.0, "he": 0.0, "no": 20.0}
WEIGHT = 2.0


@asynccontextmanager
async def fused(depth: int) -> AsyncIterator[Reranker]:
    """Sums ACCURATE and twice FAST."""
    accurate = replace(loaded(lookup(**ACCURATE)), fusion=Fusion("fast", WEIGHT))
    models = StageModels(fast=loaded(encoded_lookup(**FAST)), accurate=accurate)
    reranker = Reranker(models, Settings(device="cpu", cascade_depth=depth))
    yield reranker
    await reranker.close()


def scores(ranking: Ranking) -> dict[str, float]:
    """Words with their scores, best first."""
    return {WORDS[candidate.index]: candidate.score for candidate in ranking.candidates}


@pytest.mark.parametrize("strategy", ["accurate", "auto"])
async def test_all_candidates_get_the_sum(strategy: Strategy) -> None:
    """Both stages run, and say so."""
    async with fused(depth=5) as reranker:
        ranking = await reranker.rerank("who", WORDS, strategy=strategy)

    assert list(scores(ranking).items()) == [("no", 18.0), ("you", 12.0), ("man", 11.0), ("she", 9.0), ("he", 4.0)]
    assert ranking.strategy == "accurate"
    assert [(stage.stage, stage.candidates) for stage in ranking.stages] == [("fast", 5), ("accurate", 5)]


async def test_survivors_of_a_cascade_get_the_sum() -> None:
    """The others lie below, at the distances of the fast stage."""
    async with fused(depth=3) as reranker:
        ranking = await reranker.rerank("who", WORDS, strategy="cascade")

    assert list(scores(ranking).items()) == [("you", 12.0), ("she", 9.0), ("he", 4.0), ("man", 4.0), ("no", 2.0)]


async def test_the_fast_stage_alone_is_itself() -> None:
    """Its scores are logits of their own."""
    async with fused(depth=3) as reranker:
        assert scores(await reranker.rerank("who", WORDS, strategy="fast")) == FAST


def test_the_accurate_scorer_is_not_served_alone() -> None:
    """It would rank by half a score."""
    model = replace(loaded(lookup(**ACCURATE)), fusion=Fusion("mix-b"))
    with pytest.raises(BadSetting, match=r"^fast_model must be mix-b"):
        StageModels.of(model)


def test_lists_of_unlike_length_are_not_summed() -> None:
    """A candidate without a score of either would be ranked by the other."""
    with pytest.raises(ValueError, match="shorter"):
        Fusion("fast").fuse([1.0, 2.0], [1.0])
