"""Candidates read only as far as a request wants: they score as the cut text, and no cache mixes the two."""

import asyncio
import random

import pytest
import torch
from support.models import random_text, score_batch, tiny_bi_encoder, tiny_cross_encoder
from support.precomputing import tiny_colbert, tiny_mix_encoder
from support.redis_server import RedisServer
from support.serving import served
from support.tokenizer import tiny_tokenizer
from support.variants import VARIANTS, template_ids

from bandrank.engine.options import Options
from bandrank.engine.ranking import Ranking
from bandrank.engine.served import ServedModel
from bandrank.models.layers.passages import most_tokens, passage_bounds
from bandrank.models.scorer import Scorer
from bandrank.models.texts import WHOLE, Reach
from bandrank.settings import Settings

TOLERANCE = 1e-5  # between a candidate's score alone and in a batch, in float32
QUERY = "who was the man"
LENGTHS = [0, 1, 7, 8, 9, 30, 100]  # in words of one piece each
SCORERS = {
    "cross-encoder": lambda: tiny_cross_encoder(positions=64),
    "bi-encoder": tiny_bi_encoder,
    "mix-encoder": tiny_mix_encoder,
    "colbert": tiny_colbert,
}


def texts_of(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [random_text(rng, length) for length in LENGTHS]


def cut(text: str, num_words: int) -> str:
    return " ".join(text.split()[:num_words])


def scores(ranking: Ranking) -> list[float]:
    """Scores in the order of the request."""
    return [each.score for each in sorted(ranking.candidates, key=lambda each: each.index)]


def no_cache() -> Settings:
    return Settings(device="cpu", cache_memory_bytes=0)


@pytest.mark.parametrize("kind", SCORERS)
async def test_a_candidate_that_is_read_so_far_scores_as_the_cut_text(kind: str) -> None:
    """The answer counts every word beyond the limit as cut, even one that would not have fitted anyway."""
    texts = texts_of(1)
    async with served(SCORERS[kind](), settings=no_cache()) as model:
        limited = await model.rank(QUERY, texts, options=Options(Reach(tokens=8)))
        expected = await model.rank(QUERY, [cut(text, 8) for text in texts])

    assert scores(limited) == pytest.approx(scores(expected), abs=TOLERANCE)
    (stage,) = limited.reports
    assert stage.truncated_candidate_tokens == [max(0, length - 8) for length in LENGTHS]
    assert limited.num_tokens == expected.num_tokens


@pytest.mark.parametrize("kind", SCORERS)
async def test_requests_of_different_limits_share_batches_and_caches(kind: str) -> None:
    """Each request gets the scores that it gets alone without a cache, whether the cache is cold or warm."""
    texts = texts_of(2)
    reaches = [WHOLE, Reach(tokens=8), Reach(tokens=9), Reach(tokens=1), Reach(tokens=10_000), WHOLE]

    async def ask(model: ServedModel) -> list[list[float]]:
        rankings = await asyncio.gather(*(model.rank(QUERY, texts, options=Options(reach)) for reach in reaches))
        return [scores(ranking) for ranking in rankings]

    async with served(SCORERS[kind](), settings=no_cache()) as model:
        alone = [scores(await model.rank(QUERY, texts, options=Options(reach))) for reach in reaches]
    async with served(SCORERS[kind]()) as model:
        cold, warm = await ask(model), await ask(model)

    assert len({tuple(each) for each in alone}) == 4  # the limits do make a difference
    for one, other, third in zip(alone, cold, warm, strict=True):
        assert other == pytest.approx(one, abs=1e-3)  # cached representations are float16
        assert third == pytest.approx(one, abs=1e-3)


@pytest.mark.parametrize("order", [(WHOLE, Reach(8)), (Reach(8), WHOLE)], ids=["whole first", "cut first"])
async def test_texts_that_the_limit_does_not_cut_are_found_in_redis(
    server: RedisServer, order: tuple[Reach, Reach]
) -> None:
    """Another replica finds only the texts that neither request cuts, whichever asked first, as the scores show."""
    texts = texts_of(3)
    settings = Settings(device="cpu", redis_url=server.url, cache_memory_bytes=0, redis_timeout_s=20.0)
    async with served(tiny_bi_encoder(), settings=no_cache()) as model:
        expected = {reach: scores(await model.rank(QUERY, texts, options=Options(reach))) for reach in order}
    async with served(tiny_bi_encoder(), settings=settings) as model:
        await model.rank(QUERY, texts, options=Options(order[0]))
    async with served(tiny_bi_encoder(), settings=settings) as model:
        second = await model.rank(QUERY, texts, options=Options(order[1]))
    async with served(tiny_bi_encoder(), settings=settings) as model:
        again = await model.rank(QUERY, texts, options=Options(order[1]))

    shared = sum(length <= 8 for length in LENGTHS)
    assert [each.reports[0].cache_hits for each in (second, again)] == [shared, len(texts)]
    assert [each.reports[0].truncated_candidate_tokens for each in (second, again)] == [
        [max(0, length - 8) if order[1].tokens else 0 for length in LENGTHS]
    ] * 2
    for ranking in (second, again):
        assert scores(ranking) == pytest.approx(expected[order[1]], abs=1e-3)


@pytest.mark.parametrize("num_passages", [1, 2, 5])
@pytest.mark.parametrize("room", [2, 3, 10, 57])
def test_so_many_tokens_make_so_many_passages(num_passages: int, room: int) -> None:
    most = most_tokens(num_passages, room)

    assert len(passage_bounds(most, room)) == num_passages
    assert len(passage_bounds(most + 1, room)) == num_passages + 1


@pytest.mark.parametrize("num_passages", [1, 2, 3])
@pytest.mark.parametrize(
    "variant",
    [
        *("cross_encoder full", "cross_encoder sparse", "sequence_cross_encoder cls", "sequence_cross_encoder llama"),
        *("decoder_reranker", "candidate_first_reranker", "seq2seq_reranker"),
    ],
)
def test_a_scorer_that_reads_pairs_knows_how_far_its_passages_reach(variant: str, num_passages: int) -> None:
    """Its head sees one row for each passage."""
    scorer = VARIANTS[variant]()
    query = template_ids(scorer, random.Random(0), 5, query=True)
    most = scorer.passages_limit(len(query), num_passages)
    seen: list[int] = []
    scorer.head.register_forward_pre_hook(lambda _, rows: seen.append(len(rows[0])))
    for length in (most, most + 1):
        with torch.inference_mode():
            scorer(score_batch([query], [[[9] * length]]))

    assert seen == [num_passages, num_passages + 1]


@pytest.mark.parametrize("num_passages", [1, 2, 1000])
async def test_a_candidate_is_read_as_far_as_its_passages_reach(num_passages: int) -> None:
    """Positions are 64; [CLS], the query's 4 tokens and its [SEP] leave 64 - 1 - 5 = 58 tokens to each passage."""
    texts = texts_of(4)
    async with served(tiny_cross_encoder(positions=64)) as model:
        limited = await model.rank(QUERY, texts, options=Options(Reach(passages=num_passages)))
        most = most_tokens(num_passages, 58) - 1  # [SEP] takes one
        expected = await model.rank(QUERY, [cut(text, most) for text in texts])

    assert scores(limited) == pytest.approx(scores(expected), abs=TOLERANCE)
    (stage,) = limited.reports
    assert stage.truncated_candidate_tokens == [max(0, length - most) for length in LENGTHS]


@pytest.mark.parametrize(
    "scorer", [tiny_bi_encoder(), tiny_cross_encoder(positions=64, long_candidates="truncate")], ids=["bi", "truncated"]
)
async def test_of_a_scorer_without_passages_one_is_the_whole(scorer: Scorer) -> None:
    """A limit of one passage cuts nothing that would otherwise be read."""
    texts = texts_of(5)
    async with served(scorer, settings=no_cache()) as model:
        limited = await model.rank(QUERY, texts, options=Options(Reach(passages=1)))
        expected = await model.rank(QUERY, texts)

    assert limited.candidates == expected.candidates


def left_of(text: str, most: int, query: str | None) -> int:
    """The tokens of a text that the tokenizers library keeps if the text, or its pair with a query, may have `most`."""
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(most)
    encoding = tokenizer.encode(text) if query is None else tokenizer.encode(query, text)
    return encoding.sequence_ids.count(0 if query is None else 1)


@pytest.mark.parametrize("most", [6, 9, 11, 12, 20, 40, 1000])
@pytest.mark.parametrize("kind", ["cross-encoder", "bi-encoder"])
async def test_a_pair_of_so_many_tokens_is_cut_as_the_tokenizer_would(kind: str, most: int) -> None:
    """The query is never cut, unlike in the library; if a pair stays too long because of that, the answer says so."""
    texts = texts_of(6)
    query = QUERY if kind == "cross-encoder" else None
    left = [left_of(text, most, query) for text in texts]
    async with served(SCORERS[kind](), settings=no_cache()) as model:
        limited = await model.rank(QUERY, texts, options=Options(Reach(pair=most)))
        expected = await model.rank(QUERY, [cut(text, num_words) for text, num_words in zip(texts, left, strict=True)])

    assert scores(limited) == pytest.approx(scores(expected), abs=TOLERANCE)
    (stage,) = limited.reports
    assert stage.truncated_candidate_tokens == [length - kept for length, kept in zip(LENGTHS, left, strict=True)]
    query_tokens = len(tiny_tokenizer().encode(QUERY).ids)
    assert stage.pair_exceeded == (most < 3 + 2 * 4 if kind == "cross-encoder" else most < query_tokens)


@pytest.mark.parametrize(
    ("most", "exceeded"), [(None, False), (5, True), (6, False), (7, False)], ids=["any", "fewer", "as many", "more"]
)
@pytest.mark.parametrize("scorer", [tiny_bi_encoder(), tiny_bi_encoder(max_tokens=8)], ids=["whole", "cut"])
async def test_a_query_of_more_tokens_is_told(scorer: Scorer, most: int | None, exceeded: bool) -> None:
    """The scores are those without the limit. Words that the scorer does not read do not count: of ten it reads six."""
    query = (
        "who was the man she said" if scorer.query_template.max_tokens > 8 else "who was the man she said that he is it"
    )
    async with served(scorer, settings=no_cache()) as model:
        limited = await model.rank(query, ["man"], options=Options(query_tokens=most))
        expected = await model.rank(query, ["man"])

    assert limited.candidates == expected.candidates
    assert [stage.query_exceeded for stage in limited.reports] == [exceeded]


async def test_a_short_reach_costs_little() -> None:
    """The rows that a request is expected to need count only the tokens that are read."""
    async with served(tiny_cross_encoder(positions=64)) as model:
        scorer = model.stages[0].scorer
        reaches = WHOLE, Reach(8), Reach(8, 1)
        rows = [scorer.estimate_rows(QUERY, ["a" * 10_000] * 5, Options(reach)) for reach in reaches]

    assert rows[0] > 100 * rows[1]
    assert rows[1] == rows[2]


async def test_what_is_likely_to_be_cached_is_not_expected_to_be_encoded() -> None:
    """At first every candidate is expected to be encoded, later only the part that the cache lately lacked."""
    async with served(tiny_bi_encoder()) as model:
        scorer = model.stages[0].scorer
        [before] = scorer.expected(QUERY, ["man"] * 5).values()
        for _ in range(30):
            await model.rank(QUERY, ["man"])
        [after] = scorer.expected(QUERY, ["man"] * 5).values()

    assert 0 < 50 * after < before
    assert before >= 5
