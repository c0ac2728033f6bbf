"""A SPLADE behind the engine: its candidates' terms are cached, and a query that a table reads costs no model."""

import pytest
from support.precomputing import tiny_splade
from support.redis_server import RedisServer
from support.serving import ranked, served

from bandrank.dtypes import PayloadDtype
from bandrank.models.encoders.stack import Stack
from bandrank.settings import Settings

TEXTS = ["man", "she", "you and he", "", "who was the man", "the time of all that"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("table", [False, True])
async def test_cached_terms_score_as_new_ones(table: bool, dtype: PayloadDtype, server: RedisServer) -> None:
    """In every dtype of the cache, from Redis too, and close to the scores without rounding."""
    scores = {}
    for redis, of_cache in (("", "float32"), (server.url, dtype), (server.url, dtype)):
        settings = Settings(
            device="cpu", redis_url=redis, redis_timeout_s=20.0, cache_dtype=of_cache, cache_memory_bytes=0
        )
        async with served(tiny_splade(query_table=table, score_scale=0.01), settings=settings) as model:
            ranking = await model.rank("who was she", TEXTS)
        scores[redis, ranking.reports[0].cache_hits] = ranked(ranking)

    exact, new, cached = scores["", 0], scores[server.url, 0], scores[server.url, len(TEXTS)]
    assert cached == new
    assert [index for index, _ in cached] == [index for index, _ in exact]
    assert [score for _, score in cached] == pytest.approx([score for _, score in exact], rel=1e-3)
    assert len({score for _, score in exact}) == len(TEXTS)


async def test_a_table_reads_a_query_without_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its candidates are cached."""
    async with served(tiny_splade(query_table=True, score_scale=0.01)) as model:
        first = await model.rank("who was she", TEXTS)
        monkeypatch.setattr(Stack, "forward", None)
        again = await model.rank("who was she", TEXTS)

    assert ranked(again) == ranked(first)
