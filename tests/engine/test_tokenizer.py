"""From texts to token ids: the query takes precedence, cut tokens are counted, and the cache changes nothing."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import random_text, tiny_bi_encoder, tiny_cross_encoder
from support.scorers import word_id
from support.slices import counted_slices
from support.tasks import CLIENT, until
from support.tokenizer import CLS_ID, SENTENCE_ID, SEP_ID, UNK_ID, tiny_tokenizer

from bandrank.engine.tokenizer import SLICE_CHARACTERS, RequestTokenizer, TextLimits, TokenizedRequest
from bandrank.errors import InputTooLarge, Overloaded
from bandrank.metrics import Metrics
from bandrank.models.layers.patterns import sparse
from bandrank.models.scorer import Scorer
from bandrank.models.texts import TextEncoder

VOCABULARY = tiny_tokenizer()
MAX_TOKENS, MAX_QUERY_TOKENS = 64, 16
TRUNCATING = tiny_cross_encoder(
    positions=MAX_TOKENS, max_query_tokens=MAX_QUERY_TOKENS, long_candidates="truncate", pattern=sparse(window=4)
)
MAXP = tiny_cross_encoder(positions=MAX_TOKENS, max_query_tokens=MAX_QUERY_TOKENS, max_candidate_tokens=200)
BI = tiny_bi_encoder(max_tokens=32)
UNREAD = Metrics()
QDS = tiny_cross_encoder(positions=128, long_candidates="truncate", sentence_token=SENTENCE_ID)


@contextmanager
def tokenizer_of(
    scorer: Scorer,
    *,
    cache_bytes: int = 2**20,
    metrics: Metrics | None = None,
    limits: TextLimits | None = None,
    others: Sequence[RequestTokenizer] = (),
) -> Iterator[RequestTokenizer]:
    tokenizer = RequestTokenizer(
        TextEncoder(VOCABULARY, scorer),
        cache_bytes=cache_bytes,
        num_threads=1,
        metrics=metrics or UNREAD,
        limits=limits or TextLimits(),
        others=others,
    )
    yield tokenizer
    tokenizer.close()


def ids(*tokens: str) -> list[int]:
    return [word_id(token) for token in tokens]


def plain(request: TokenizedRequest) -> tuple[list[int], list[list[int]], int, list[int]]:
    """Everything that a request was tokenised to, as values that can be compared."""
    cut = request.truncated_query_tokens, request.truncated_candidate_tokens
    return request.query.tolist(), request.candidates.tolist(), *cut


def text_of(num_words: int, *, seed: int = 0) -> str:
    """A text of this many words, each a single piece."""
    return random_text(random.Random(seed), num_words)


@given(
    query_words=st.integers(1, 30),
    candidate_words=st.lists(st.integers(0, 150), min_size=1, max_size=5),
    scorer=st.sampled_from([TRUNCATING, MAXP, BI]),
)
def test_cut_pieces_are_counted(query_words: int, candidate_words: list[int], scorer: Scorer) -> None:
    """Kept and cut pieces add up to all pieces, the leading ones are kept, and none that fits is cut."""
    query, candidates = (
        text_of(query_words),
        [text_of(words, seed=index) for index, words in enumerate(candidate_words)],
    )
    with tokenizer_of(scorer) as tokenizer:
        request = tokenizer.tokenize_now(query, candidates)

    limit = scorer.candidate_limit(len(request.query))
    around = 2 if scorer is BI else 1
    query_limit = 32 if scorer is BI else MAX_QUERY_TOKENS
    assert len(request.query) == min(query_words + around, query_limit)
    assert request.truncated_query_tokens == query_words + around - len(request.query)
    for text, words, kept, cut in zip(
        candidates, candidate_words, request.candidates.tolist(), request.truncated_candidate_tokens, strict=True
    ):
        assert len(kept) == min(words + around, limit)
        assert cut == words + around - len(kept)
        pieces = kept[around - 1 : -1]
        assert pieces == ids(*text.split())[: len(pieces)]
        assert kept[-1] == SEP_ID


def test_a_candidate_that_passages_can_cover_is_whole() -> None:
    """With MaxP the number of positions is no limit."""
    with tokenizer_of(MAXP) as tokenizer:
        request = tokenizer.tokenize_now(text_of(10), [text_of(199), text_of(200)])

    assert [len(candidate) for candidate in request.candidates] == [200, 200]
    assert request.truncated_candidate_tokens == [0, 1]


def test_both_sides_of_a_bi_encoder_are_framed() -> None:
    with tokenizer_of(BI) as tokenizer:
        request = tokenizer.tokenize_now("the man", ["", "she was"])

    assert request.query.tolist() == [CLS_ID, *ids("the", "man"), SEP_ID]
    assert request.candidates.tolist() == [[CLS_ID, SEP_ID], [CLS_ID, *ids("she", "was"), SEP_ID]]


def test_characters_that_the_vocabulary_lacks_are_unknown_tokens() -> None:
    with tokenizer_of(TRUNCATING) as tokenizer:
        request = tokenizer.tokenize_now("☃", ["ж ж ж", "漢字", "the ☃ man"])

    assert request.query.tolist() == [UNK_ID, SEP_ID]
    assert request.candidates[:2].tolist() == [[UNK_ID] * 3 + [SEP_ID], [UNK_ID] * 2 + [SEP_ID]]
    assert request.candidates[2].tolist() == [*ids("the"), UNK_ID, *ids("man"), SEP_ID]


@pytest.mark.parametrize("text", ["", " ", "\x00", "\x00\x07\x7f", "\n\t\u2003"])
def test_a_text_without_pieces_is_its_frame(text: str) -> None:
    """Empty texts, white space and control characters have no pieces."""
    with tokenizer_of(TRUNCATING) as tokenizer:
        request = tokenizer.tokenize_now("the", [text])

    assert (request.candidates.tolist(), request.truncated_candidate_tokens) == ([[SEP_ID]], [0])


@given(st.lists(st.sampled_from(["the man", "she", "", "was it?", "no", "ж"]), min_size=1, max_size=12))
def test_with_and_without_a_cache_the_ids_are_the_same(texts: list[str]) -> None:
    with (
        tokenizer_of(TRUNCATING, cache_bytes=0) as without,
        tokenizer_of(TRUNCATING) as with_cache,
        tokenizer_of(TRUNCATING, cache_bytes=400) as with_little,
    ):
        expected = plain(without.tokenize_now("the", texts))

        for tokenizer in (with_cache, with_cache, with_little, with_little):
            assert plain(tokenizer.tokenize_now("the", texts)) == expected


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=6), max_size=8), st.sampled_from([0, 800, 2**20]))
def test_every_text_looked_up_is_a_hit_or_a_miss(requests: list[list[str]], cache_bytes: int) -> None:
    """Hits and misses add up to the texts, and with enough room every repeated text is a hit."""
    metrics = Metrics()

    def lookups(outcome: str) -> float:
        return metrics.registry.get_sample_value("bandrank_token_cache_lookups_total", {"outcome": outcome}) or 0.0

    num_texts = sum(len(texts) for texts in requests)
    with tokenizer_of(TRUNCATING, cache_bytes=cache_bytes, metrics=metrics) as tokenizer:
        for texts in requests:
            tokenizer.tokenize_now("the", texts)
        assert lookups("hit") + lookups("miss") == num_texts
        misses = lookups("miss")
        for texts in requests:
            tokenizer.tokenize_now("the", texts)

    assert lookups("hit") + lookups("miss") == 2 * num_texts
    assert cache_bytes < 2**20 or lookups("miss") == misses


def test_the_size_of_the_cache_is_a_metric() -> None:
    """The metric adds up the bytes of all scorers' caches, each of which stays within its bound."""
    metrics, sizes = Metrics(), []
    with (
        tokenizer_of(TRUNCATING, cache_bytes=1000, metrics=metrics) as one,
        tokenizer_of(BI, cache_bytes=1000, metrics=metrics) as other,
    ):
        for tokenizer, texts in ((one, ["she was", "no"]), (other, ["a"]), (one, ["no"]), (other, ["a b"] * 9)):
            tokenizer.tokenize_now("the", texts)
            sizes.append(metrics.registry.get_sample_value("bandrank_token_cache_bytes") or 0)

    assert 0 < sizes[0] < sizes[1] == sizes[2] < sizes[3] <= 2000


def test_scorers_that_read_texts_alike_share_what_is_kept() -> None:
    """As those of a cascade do; a scorer that marks sentences has other word pieces."""
    metrics, texts = Metrics(), ["she was. no", "a"]
    with (
        tokenizer_of(BI, metrics=metrics) as one,
        tokenizer_of(TRUNCATING, metrics=metrics, others=[one]) as alike,
        tokenizer_of(QDS, metrics=metrics, others=[one, alike]) as marking,
    ):
        for tokenizer, misses in ((one, 2), (alike, 2), (marking, 4)):
            tokenizer.tokenize_now("the", texts)
            counted = metrics.registry.get_sample_value("bandrank_token_cache_lookups_total", {"outcome": "miss"})
            assert counted == misses
        with tokenizer_of(QDS) as by_itself:
            assert plain(marking.tokenize_now("the", texts)) == plain(by_itself.tokenize_now("the", texts))


def test_sentences_are_marked() -> None:
    """A marker token precedes each sentence; a sentence ends with . ! or ? and white space."""
    with tokenizer_of(QDS) as tokenizer:
        request = tokenizer.tokenize_now("is it? no", ["She was 2.5.  He is!\nNo", "you"])

    assert request.query.tolist() == [*ids("is", "it", "?", "no"), SEP_ID]
    first = [SENTENCE_ID, *ids("she", "was", "2", ".", "5", ".")]
    assert request.candidates.tolist() == [
        [*first, SENTENCE_ID, *ids("he", "is", "!"), SENTENCE_ID, *ids("no"), SEP_ID],
        [SENTENCE_ID, *ids("you"), SEP_ID],
    ]


def test_white_space_around_a_text_is_no_sentence() -> None:
    """White space after the last full stop adds no marker."""
    with tokenizer_of(QDS) as tokenizer:
        bare, spaced = tokenizer.tokenize_now("is", ["She was. No.", " She was. No. \n"]).candidates.tolist()

    assert spaced == bare


def test_marks_of_cut_sentences_are_not_counted() -> None:
    """Thirty sentences of three words and a full stop are 120 pieces."""
    text = " ".join(["the man was."] * 30)
    with tokenizer_of(QDS) as tokenizer:
        request = tokenizer.tokenize_now("is", [text])

    kept = request.candidates[0]
    pieces_kept = sum(token not in (SENTENCE_ID, SEP_ID) for token in kept)
    assert len(kept) == QDS.candidate_limit(2) < 30 * 5
    assert request.truncated_candidate_tokens == [30 * 4 - pieces_kept]


LARGE = ["man " * (SLICE_CHARACTERS // 4)] * 6  # six slices


async def finish_order(tokenizer: RequestTokenizer, requests: dict[str, list[str]]) -> list[str]:
    """Starts the named requests in this order and returns the names in the order in which they end."""
    ended: list[str] = []

    async def tokenize(name: str, texts: list[str]) -> None:
        await tokenizer.tokenize("the", texts, client=CLIENT)
        ended.append(name)

    await asyncio.gather(*(tokenize(name, texts) for name, texts in requests.items()))
    return ended


@pytest.mark.parametrize("limits", [TextLimits(), TextLimits(query=2**20)])
async def test_a_long_query_leaves_the_event_loop_alone(limits: TextLimits) -> None:
    """Whether the query is cut or not, the tokenizer holds the interpreter lock only briefly."""
    with tokenizer_of(TRUNCATING, limits=limits) as tokenizer:
        task = asyncio.create_task(tokenizer.tokenize("man " * 2**18, ["she"], client=CLIENT))
        gaps = []
        while not task.done():
            start = time.monotonic()
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - start)
        request = task.result()

    assert max(gaps) < 0.25
    assert len(request.query) + request.truncated_query_tokens == pytest.approx(2**18, rel=0.2)


def test_what_lies_beyond_the_characters_that_are_read_counts_as_truncated() -> None:
    """What is cut counts as at least one token, and texts within the limits are unaffected."""
    limits = TextLimits(query=8, candidate=16)
    texts = ["man " * 4, "man " * 4 + "\0", "man " * 40, "she"]
    with tokenizer_of(TRUNCATING) as whole, tokenizer_of(TRUNCATING, limits=limits) as cut:
        expected = whole.tokenize_now("the man", [text[:16] for text in texts])
        request = cut.tokenize_now("the man is", texts)

    assert plain(request)[:2] == plain(expected)[:2]
    assert request.truncated_query_tokens == 1
    assert request.truncated_candidate_tokens == [0, 1, pytest.approx(36, abs=4), 0]


async def test_no_text_is_explained_beyond_the_characters_that_are_read() -> None:
    with tokenizer_of(TRUNCATING, limits=TextLimits(query=8, candidate=6)) as tokenizer:
        query, candidate = await tokenizer.read("the man is", "he " * 50, client=CLIENT)

    assert (query.read_to, candidate.read_to) == (8, 6)
    assert [token.piece for token in candidate.tokens] == ["he", "he", "[SEP]"]


async def test_slices_give_the_ids_of_the_whole() -> None:
    texts = [text_of(6000, seed=seed) for seed in range(20)]
    assert sum(map(len, texts)) > 3 * SLICE_CHARACTERS
    with tokenizer_of(TRUNCATING, cache_bytes=0) as tokenizer:
        sliced = await tokenizer.tokenize("the", texts, client=CLIENT)
        assert plain(sliced) == plain(tokenizer.tokenize_now("the", texts))


async def test_a_small_request_passes_large_ones() -> None:
    """The small request waits only for the slice under way, and requests of equal size end in the order of their
    arrival.
    """
    with tokenizer_of(TRUNCATING, cache_bytes=0) as tokenizer:
        large = {f"large {number}": LARGE for number in range(4)}

        assert await finish_order(tokenizer, large | {"small": ["man"]}) == ["small", *large]


async def test_a_request_that_is_cancelled_is_tokenised_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slice under way is the last one, and the room of the request is free again."""
    slices = counted_slices(monkeypatch)
    size = 3 + sum(map(len, LARGE))
    with tokenizer_of(TRUNCATING, cache_bytes=0, limits=TextLimits(in_flight=2 * size)) as tokenizer:
        gone = asyncio.create_task(tokenizer.tokenize("the", LARGE, client=CLIENT))
        await until(lambda: bool(slices))
        gone.cancel()
        await asyncio.wait([gone])
        assert await finish_order(tokenizer, {"next": ["man"]}) == ["next"]
        await tokenizer.tokenize("the", LARGE, client=CLIENT)

    assert len(slices) <= 2 + 1 + 6


async def test_characters_that_wait_are_bounded() -> None:
    """A request beyond the bound is refused at once, as is one that could never fit; later there is room again."""
    with tokenizer_of(TRUNCATING, cache_bytes=0, limits=TextLimits(in_flight=2**21)) as tokenizer:
        running = asyncio.create_task(tokenizer.tokenize("the", LARGE, client=CLIENT))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await tokenizer.tokenize("the", LARGE, client=CLIENT)
        with pytest.raises(InputTooLarge, match="limit 1048576"):
            await tokenizer.tokenize("the", LARGE * 2, client=CLIENT)
        await running
        await tokenizer.tokenize("the", LARGE, client=CLIENT)

    assert 0 <= refused.value.retry_after_s <= 30


@pytest.mark.parametrize(
    "text", ["x", "a\u0301", "\u0301\u0315", "\0", " ", "\u4e2d", "!", ".\n", "\U0001f9ea", "\ufdfa"]
)
def test_every_text_is_tokenised_in_time(text: str) -> None:
    """The texts include a word of a million letters, a million marks on one letter, and texts without any pieces. None
    costs many times what 50,000 words of prose cost, which are about as many characters as are read.
    """

    def seconds(text: str, count: int) -> float:
        start = time.process_time()
        with tokenizer_of(QDS) as tokenizer:
            tokenizer.tokenize_now(text * count, [text * count])
        return time.process_time() - start

    assert seconds(text, 10**6) < 20 * seconds("man ", 50_000)
