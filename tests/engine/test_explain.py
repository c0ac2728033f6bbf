"""Explanations: the score explained is the one served, and each contribution is a difference of two scores."""

import random
from collections.abc import Mapping
from contextlib import AbstractContextManager

import pytest
import torch
from support.accounts import ACCOUNT
from support.models import random_text, tiny_bi_encoder, tiny_cross_encoder
from support.redis_server import RedisServer
from support.scorers import LookupScorer, encoded_lookup, lookup, word_id
from support.server import Scrape
from support.serving import served
from support.variants import VARIANTS
from torch import Tensor

from bandrank.engine.explain import EXCERPT_TOKENS, MAX_GAPS, MAX_ROWS, Explanation, explain
from bandrank.engine.occlusion import Scope
from bandrank.engine.served import ServedModel
from bandrank.engine.tasks import AnyLane, AnyTask
from bandrank.engine.tickets import Ticket
from bandrank.errors import DeadlineExceeded, UnknownStrategy
from bandrank.models.batch import ScoreBatch
from bandrank.models.fusion import Fusion
from bandrank.settings import Settings

QUERY = "who is the man"
TOLERANCE = 1e-5  # between a candidate's score alone and in a batch, in float32
WEIGHT = 0.5


class AnywhereScorer(LookupScorer):
    """Gives a candidate of any length the highest score of its words."""

    def __init__(self, scores: dict[int, float]) -> None:
        super().__init__(scores, max_tokens=8192)

    def score(self, batch: ScoreBatch) -> Tensor:
        candidates = [batch.candidates[index].tolist() for index in range(len(batch.candidates))]
        return torch.tensor([max(self._scores.get(token, 0.0) for token in tokens) for tokens in candidates])


async def score_of(model: ServedModel, text: str, strategy: str = "auto") -> float:
    [candidate] = (await model.rank(QUERY, [text], strategy=strategy)).candidates
    return candidate.score


async def explanation_of(model: ServedModel, text: str, strategy: str = "auto") -> Explanation:
    return await explain(model, QUERY, text, strategy=strategy, account=ACCOUNT)


async def check_differences(model: ServedModel, text: str, explained: Explanation) -> None:
    """Checks that each contribution is what the served score loses without those words."""
    whole = Scope(0, len(text), 1.0)
    for each in explained.contributions:
        rest = await score_of(model, whole.without(text, (each.start, each.end)))
        assert each.score == pytest.approx(explained.score - rest, abs=TOLERANCE)


@pytest.mark.parametrize(
    "variant", ["cross_encoder sparse", "cross_encoder sentences", "bi_encoder mean", "mix_encoder b", "colbert v2"]
)
async def test_a_contribution_is_what_the_score_loses(variant: str) -> None:
    """This holds for every kind of scorer, and explaining the same text again gives the same numbers."""
    text = "The man! She said that " + random_text(random.Random(1), 12)
    async with served(VARIANTS[variant]()) as model:
        explained, again = await explanation_of(model, text), await explanation_of(model, text)
        alone = await score_of(model, text)

        assert explained.score == alone
        assert len(explained.contributions) == 17
        await check_differences(model, text, explained)
    assert [each.score for each in again.contributions] == [each.score for each in explained.contributions]
    [stage] = explained.stages
    assert (stage.score, stage.weight) == (alone, 1.0)


async def test_a_long_candidate_is_explained_by_its_best_passage() -> None:
    """The score, with or without a window of words, is always that of the best passage of the text that is left."""
    text = random_text(random.Random(2), 150)
    async with served(VARIANTS["cross_encoder sparse"]()) as model:  # in passages of at most 64 tokens
        explained = await explanation_of(model, text)

        assert explained.score == await score_of(model, text)
        assert len(explained.contributions) == 50 <= MAX_GAPS
        assert [stage.candidate.read_to for stage in explained.stages] == [len(text)]
        await check_differences(model, text, explained)


async def test_the_work_for_a_text_of_some_passages_is_bounded() -> None:
    """A text of several passages gets fewer windows, so that all texts with a gap together stay below the bound on
    rows.
    """
    async with served(tiny_cross_encoder(num_layers=1)) as model:
        explained = await explanation_of(model, random_text(random.Random(4), 900))

    assert 8 <= len(explained.contributions) < MAX_GAPS
    assert sum(report.num_tokens for report in explained.occlusion) < MAX_ROWS
    assert [stage.excerpt for stage in explained.stages] == [None]


async def test_a_long_text_is_explained_by_an_excerpt() -> None:
    """Words are left out of the excerpt that scores highest, and contributions are to the excerpt's own score."""
    text = random_text(random.Random(5), 5000)
    async with served(tiny_cross_encoder(num_layers=1)) as model:
        explained = await explanation_of(model, text)
        again = await explanation_of(model, text)
        [stage] = explained.stages
        assert stage.excerpt is not None
        excerpt = text[stage.excerpt.start : stage.excerpt.end]

        assert explained.score == stage.score == await score_of(model, text)
        assert stage.excerpt.score == pytest.approx(await score_of(model, excerpt), abs=TOLERANCE)
        whole = Scope(stage.excerpt.start, stage.excerpt.end, 1.0)
        for each in explained.contributions:
            rest = await score_of(model, whole.without(text, (each.start, each.end)))
            assert each.score == pytest.approx(stage.excerpt.score - rest, abs=TOLERANCE)
            assert each.stages == {"accurate": each.score}
    parts, gaps = explained.occlusion
    assert parts.num_candidates == -(-5001 // EXCERPT_TOKENS)
    assert parts.num_tokens < 1.1 * 5001
    assert 30 < gaps.num_candidates == len(explained.contributions)
    assert gaps.num_tokens < MAX_ROWS
    assert (explained.contributions[0].start, explained.contributions[-1].end) == (
        stage.excerpt.start,
        stage.excerpt.end,
    )
    assert again.contributions == explained.contributions


async def test_the_excerpt_has_what_the_score_is_of() -> None:
    """If one part of the text stands out, the excerpt is that part, and its words get the contributions."""
    scores = {word_id("man"): 3.0}
    text = " ".join(["he"] * 3000 + ["man"] + ["she"] * 3000)
    async with served(AnywhereScorer(scores)) as model:
        explained = await explanation_of(model, text)

    [stage] = explained.stages
    assert stage.excerpt is not None
    assert "man" in text[stage.excerpt.start : stage.excerpt.end]
    [found] = [each for each in explained.contributions if each.score]
    assert found.score == 3.0
    assert "man" in text[found.start : found.end]


async def test_stages_look_at_different_parts() -> None:
    """The fast stage explains all that it reads, the accurate one an excerpt; each contribution names its stage."""
    text = " ".join(["he"] * 3000 + ["man"] + ["she"] * 3000)
    fast, accurate = tiny_bi_encoder(similarity="dot"), AnywhereScorer({word_id("man"): 3.0})
    async with served(accurate, fast=fast, fusion=Fusion("tiny-fast", WEIGHT)) as model:
        explained = await explanation_of(model, text)

    of_fast, of_accurate = explained.stages
    assert of_fast.excerpt is None
    assert of_accurate.excerpt is not None
    seen = {tuple(each.stages): each for each in explained.contributions}
    assert seen.keys() == {("fast",), ("accurate",)}
    assert seen["fast",].end <= of_fast.candidate.read_to < of_accurate.excerpt.start
    for each in explained.contributions:
        assert each.score == pytest.approx(
            WEIGHT * each.stages.get("fast", 0.0) + each.stages.get("accurate", 0.0), abs=TOLERANCE
        )
    assert max(each.stages.get("accurate", 0.0) for each in explained.contributions) == 3.0


async def test_what_is_cut_is_left_out_and_counted() -> None:
    """No window lies in the part that is not read, and leaving a window out lets none of that part in."""
    text = "he " * 30 + "man " * 30
    async with served(tiny_cross_encoder(positions=32, max_query_tokens=8, long_candidates="truncate")) as model:
        explained = await explanation_of(model, text)
        [stage] = explained.stages

        assert stage.report.truncated_candidate_tokens == [60 - 25]
        assert (stage.candidate.read_to, explained.contributions[-1].end) == (75, 74)
        await check_differences(model, text[:75], explained)


async def test_stages_add_up_where_their_scores_are_added() -> None:
    text = random_text(random.Random(3), 9)
    accurate, fast = tiny_cross_encoder(), tiny_bi_encoder(similarity="dot")
    async with served(accurate, fast=fast, fusion=Fusion("tiny-fast", WEIGHT)) as model:
        explained = await explanation_of(model, text)

        assert explained.score == await score_of(model, text)
        await check_differences(model, text, explained)
    assert [(stage.stage, stage.weight) for stage in explained.stages] == [("fast", WEIGHT), ("accurate", 1.0)]
    assert explained.score == sum(stage.weight * stage.score for stage in explained.stages)
    for each in explained.contributions:
        assert each.score == WEIGHT * each.stages["fast"] + each.stages["accurate"]


async def test_a_stage_that_only_chooses_has_weight_0() -> None:
    """The score of such a stage is shown with weight 0, and the stage scores no text with a gap."""
    async with served(lookup(man=3.0), fast=encoded_lookup(man=2.0)) as model:
        explained = await explanation_of(model, "man she", strategy="cascade")
        accurate = await explanation_of(model, "man she")
        with pytest.raises(UnknownStrategy):
            await explanation_of(model, "man", strategy="best")

    assert [(stage.stage, stage.score, stage.weight) for stage in explained.stages] == [
        ("fast", 2.0, 0.0),
        ("accurate", 3.0, 1.0),
    ]
    assert [(each.score, each.stages) for each in explained.contributions] == [
        (3.0, {"accurate": 3.0}),
        (0.0, {"accurate": 0.0}),
    ]
    assert [report.stage for report in explained.occlusion] == ["accurate"]
    assert [stage.stage for stage in accurate.stages] == ["accurate"]


@pytest.mark.parametrize("num_words", [1, 20, 3000])
async def test_what_an_explanation_is_expected_to_need_is_near_what_it_takes(
    num_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate, which knows only the text's length, is at least 0.9 and at most 3 times the rows taken."""
    text = random_text(random.Random(3), num_words)
    async with served(AnywhereScorer({})) as model:
        await model.rank(QUERY, [text])  # from here on the tokens of a text of this length are known
        queue, expected, taken = model.engine.queue, list[float](), list[float]()
        admitted, put = queue.admitted, queue.put

        def admit(ticket: Ticket, rows: Mapping[AnyLane, float]) -> AbstractContextManager[None]:
            expected.extend(rows.values())
            return admitted(ticket, rows)

        def note(task: AnyTask, **more: bool) -> None:
            taken.append(task.total_rows)
            put(task, **more)

        monkeypatch.setattr(queue, "admitted", admit)
        monkeypatch.setattr(queue, "put", note)
        await explanation_of(model, text)

    assert 0.9 * sum(taken) <= sum(expected) <= 3 * sum(taken)


@pytest.mark.parametrize("whole_rows", [2048, 0])
@pytest.mark.parametrize("text", ["", " \n"])
async def test_a_candidate_without_words_has_a_score_alone(
    text: str, whole_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to leave out, nor is there an excerpt, however many tokens the white space takes."""
    monkeypatch.setattr("bandrank.engine.explain.WHOLE_ROWS", whole_rows)
    async with served(tiny_cross_encoder(), fast=tiny_bi_encoder(), fusion=Fusion("tiny-fast", 1.0)) as model:
        explained = await explanation_of(model, text)

        assert explained.score == await score_of(model, text)
    assert (explained.contributions, explained.occlusion) == ([], [])


async def test_shortened_texts_stay_out_of_all_caches(server: RedisServer) -> None:
    """Only the candidate itself is cached, as if it had been ranked, so that nothing else is pushed out."""
    encoded: list[int] = []
    fast = encoded_lookup(lambda tokens: encoded.append(len(tokens)), man=2.0)
    async with served(fast, settings=Settings(device="cpu", redis_url=server.url, redis_timeout_s=20.0)) as model:
        cold = await explanation_of(model, "man she he")
        warm = await explanation_of(model, "man she he")
        await model.rank(QUERY, ["she he"])
        seen = Scrape(b"".join(model.engine.metrics.exposition()).decode())
        miss_rate = model.stages[0].scorer.source.miss_rate

    assert [explained.stages[0].cached for explained in (cold, warm)] == [False, True]
    assert encoded == [1, 3, 3, 1]
    assert seen.value("bandrank_occluded_texts_total") == 6
    assert seen.value("bandrank_cache_lookups_total", tier="memory") == 3
    assert seen.value("bandrank_cache_memory_entries") == 2
    assert seen.value("bandrank_token_cache_lookups_total") == 2
    assert server.do("DBSIZE") == 2
    assert miss_rate < 0.9  # one of three candidates was cached


async def test_an_explanation_has_a_deadline() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    settings = Settings(device="cpu", request_timeout_s=1.0)
    async with served(tiny_cross_encoder(), settings=settings, clock=clock) as model:
        with pytest.raises(DeadlineExceeded):
            await explanation_of(model, "man she")
