"""A scorer whose query side was trained further reads the cache that its predecessor filled."""

import torch
from support.precomputing import tiny_mix_encoder
from support.redis_server import RedisServer
from support.serving import served

from bandrank.engine.ranking import Ranking
from bandrank.models.scorer import Scorer
from bandrank.settings import Settings

TEXTS = ["man", "she", "you and he", "", "who was the man"]


async def ranking_of(scorer: Scorer, server: RedisServer | None) -> Ranking:
    """Ranks TEXTS with a new service of the scorer that caches representations in Redis only."""
    redis_url = "" if server is None else server.url
    settings = Settings(device="cpu", redis_url=redis_url, cache_memory_bytes=0, redis_timeout_s=20.0)
    async with served(scorer, settings=settings) as model:
        return await model.rank("who was she", TEXTS)


async def test_another_query_side_scores_what_the_first_one_cached(server: RedisServer) -> None:
    """Every candidate is a cache hit and scores as with a cold cache, which differs from the first scorer's score."""
    retrained = tiny_mix_encoder()
    with torch.no_grad():
        for weight in retrained.interactions.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)), alpha=0.2)
    first = await ranking_of(tiny_mix_encoder(), server)
    warm, cold = await ranking_of(retrained, server), await ranking_of(retrained, None)

    assert [ranking.reports[0].cache_hits for ranking in (first, warm, cold)] == [0, len(TEXTS), 0]
    assert warm.candidates == cold.candidates
    assert {each.score for each in warm.candidates}.isdisjoint(each.score for each in first.candidates)


async def test_another_candidate_encoder_reads_nothing_of_the_first_one(server: RedisServer) -> None:
    """Both scorers have the same query side, but their representations of a candidate differ."""
    other = tiny_mix_encoder()
    with torch.no_grad():
        other.context_codes[0, 0] += 1
    await ranking_of(tiny_mix_encoder(), server)
    ranking = await ranking_of(other, server)

    assert ranking.reports[0].cache_hits == 0
    assert ranking.candidates == (await ranking_of(other, None)).candidates
