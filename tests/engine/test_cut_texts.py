"""Texts longer than the limit on characters: no cache confuses a cut text with a whole one, whatever its limit was."""

import random

import pytest
from support.models import random_text, tiny_bi_encoder
from support.redis_server import RedisServer
from support.serving import ranked, served

from bandrank.engine.cache.keys import digest
from bandrank.engine.ranking import Ranking
from bandrank.settings import Settings

QUERY = "who was the man"
LIMIT = 40
LONG = random_text(random.Random(1), 30)
TEXTS = [LONG, LONG[:LIMIT], "she was"]
TOLERANCE = 1e-3  # cached representations are float16


async def rank(limit: int, server: RedisServer | None = None, texts: list[str] = TEXTS) -> Ranking:
    """Ranks the texts with a new replica that reads at most `limit` characters of each candidate."""
    settings = Settings(
        device="cpu",
        redis_url="" if server is None else server.url,
        redis_timeout_s=20.0,
        cache_memory_bytes=0,
        max_candidate_characters=limit,
    )
    async with served(tiny_bi_encoder(), settings=settings) as model:
        return await model.rank(QUERY, texts)


def scores(ranking: Ranking) -> list[float]:
    """Scores in the order of the request."""
    return [score for _, score in sorted(ranked(ranking))]


def cut_of(ranking: Ranking) -> list[int]:
    return list(ranking.reports[0].truncated_candidate_tokens)


@pytest.mark.parametrize("limits", [(LIMIT, 10_000), (10_000, LIMIT), (LIMIT, LIMIT + 1)])
async def test_another_limit_finds_no_text_that_was_cut_otherwise(server: RedisServer, limits: tuple[int, int]) -> None:
    """Under both limits a text scores as without a cache, and the answer says how much of it was cut."""
    expected = [await rank(limit) for limit in limits]
    found = [await rank(limit, server) for limit in limits]

    assert abs(scores(expected[0])[0] - scores(expected[1])[0]) > 10 * TOLERANCE  # the limits do make a difference
    for one, other in zip(found, expected, strict=True):
        assert scores(one) == pytest.approx(scores(other), abs=TOLERANCE)
        assert cut_of(one) == pytest.approx(cut_of(other), rel=0.3)  # estimated, by what each has tokenised


@pytest.mark.parametrize("first", [LONG, LONG[:LIMIT]], ids=["the cut text", "its prefix"])
async def test_a_cut_text_and_its_prefix_share_what_was_encoded(server: RedisServer, first: str) -> None:
    """Only the longer text is reported as cut, whichever of the two was encoded."""
    await rank(LIMIT, server, [first])
    found = await rank(LIMIT, server)
    alone = await rank(LIMIT)

    assert found.reports[0].cache_hits == 2
    assert [cut > 0 for cut in cut_of(found)] == [True, False, False]
    assert scores(found) == pytest.approx(scores(alone), abs=TOLERANCE)
    assert scores(found)[0] == scores(found)[1]


async def test_a_text_of_as_many_characters_as_are_read_keeps_its_key(server: RedisServer) -> None:
    """The key is the digest of the whole text, so that caches filled earlier stay valid."""
    await rank(len(LONG), server, [LONG])

    assert [key.rpartition(b":")[2].decode() for key in server.do("KEYS", "*")] == [digest(LONG).hex()]
