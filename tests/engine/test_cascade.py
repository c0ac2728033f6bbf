"""The stages of a cascade make one ranking: survivors by the later stage, the rest in the earlier order, scores never
rising.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scorers import Gate, WatchedScorer, encoded_lookup, lookup
from support.serving import files_of, served
from support.tasks import Clock, until

from bandrank.engine.policy import Role
from bandrank.engine.ranking import Ranking, Stage, StageScores, best_first, merge
from bandrank.engine.served import ServedModel
from bandrank.engine.submit import CAUTION
from bandrank.errors import BadSetting
from bandrank.models.scorer import Scorer
from bandrank.serving import assemble
from bandrank.settings import Settings

SCORES = st.floats(-50, 50, allow_nan=False, width=16)
WORDS = ("man", "she", "you", "he", "no", "is")
FAST = {"man": 1.0, "she": 4.0, "you": 3.0, "he": 2.0, "no": -1.0, "is": -2.0}
ACCURATE = {"man": 9.0, "she": 1.0, "you": 5.0, "he": 7.0, "no": 20.0, "is": 30.0}


@asynccontextmanager
async def cascade(
    *, fast: Scorer | None = None, accurate: Scorer | None = None, depth: int = 3, settings: Settings | None = None
) -> AsyncIterator[ServedModel]:
    """A model of two lookup scorers, with the scores FAST and ACCURATE unless others are given."""
    settings = settings or Settings(device="cpu", cascade_depth=depth)
    async with served(accurate or lookup(**ACCURATE), fast=fast or encoded_lookup(**FAST), settings=settings) as model:
        yield model


def order(ranking: Ranking) -> list[str]:
    return [WORDS[candidate.index] for candidate in ranking.candidates]


@given(fast=st.lists(SCORES, min_size=1, max_size=20), data=st.data())
def test_a_merged_ranking_keeps_both_orders_and_never_rises(fast: list[float], data: st.DataObject) -> None:
    """Each candidate appears once: first those that the accurate stage scored, then the others in the fast stage's
    order.
    """
    survivors = best_first(fast)[: data.draw(st.integers(0, len(fast)))]
    accurate = data.draw(st.lists(SCORES, max_size=len(survivors)))
    seen = survivors[: len(accurate)]
    ranking = merge([StageScores("fast", range(len(fast)), fast), StageScores("accurate", seen, accurate)])

    assert sorted(candidate.index for candidate in ranking) == list(range(len(fast)))
    assert {candidate.index for candidate in ranking[: len(seen)]} == set(seen)
    assert [c.score for c in ranking[: len(seen)]] == sorted(accurate, reverse=True)
    rest = [candidate.index for candidate in ranking[len(seen) :]]
    assert rest == [index for index in best_first(fast) if index not in seen]
    assert all(one.score >= other.score for one, other in pairwise(ranking))
    assert [c.stage for c in ranking] == ["accurate"] * len(seen) + ["fast"] * len(rest)


def test_without_a_second_stage_the_first_keeps_its_scores() -> None:
    """Scores are shifted only below those of another stage."""
    ranking = merge([StageScores("fast", [0, 1], [0.5, 2.0]), StageScores("accurate", [], [])])

    assert [(c.index, c.score, c.stage) for c in ranking] == [(1, 2.0, "fast"), (0, 0.5, "fast")]


def test_ties_of_the_second_stage_keep_the_order_of_the_request() -> None:
    first, second = StageScores("fast", [0, 1, 2], [1.0, 3.0, 2.0]), StageScores("accurate", [1, 2, 0], [7.0, 7.0, 7.0])

    assert [c.index for c in merge([first, second])] == [0, 1, 2]


async def test_the_accurate_stage_orders_what_the_fast_one_sends() -> None:
    """The best three by FAST are ordered by ACCURATE; the others follow, though ACCURATE would have put them first."""
    async with cascade() as model:
        ranking = await model.rank("who", WORDS, strategy="cascade")

    assert order(ranking) == ["he", "you", "she", "man", "no", "is"]
    assert (ranking.strategy, ranking.degraded) == ("cascade", False)
    assert [(stage.stage, stage.num_candidates) for stage in ranking.reports] == [("fast", 6), ("accurate", 3)]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("fast", ["she", "you", "he", "man", "no", "is"]), ("accurate", ["is", "no", "man", "he", "you", "she"])],
)
async def test_a_strategy_of_one_stage_ranks_by_that_stage(strategy: str, expected: list[str]) -> None:
    async with cascade() as model:
        ranking = await model.rank("who", WORDS, strategy=strategy)

    assert order(ranking) == expected
    assert [stage.stage for stage in ranking.reports] == [strategy]


@pytest.mark.parametrize(("depth", "expected"), [(5, "cascade"), (6, "accurate")])
async def test_auto_is_the_accurate_stage_alone_for_few_candidates(depth: int, expected: str) -> None:
    """A first stage that drops no candidate would only cost time."""
    async with cascade(depth=depth) as model:
        assert (await model.rank("who", WORDS)).strategy == expected


@pytest.mark.parametrize("accurate", [lookup(**ACCURATE), encoded_lookup(**ACCURATE)], ids=["joint", "precomputing"])
async def test_auto_within_a_budget_is_what_fits(accurate: Scorer) -> None:
    """A minute is enough for the accurate stage; with a microsecond the fast stage answers, and the answer is marked as
    degraded.
    """
    async with cascade(accurate=accurate, depth=6) as model:
        await model.self_test()
        ample = await model.rank("who", WORDS, budget_s=60.0)
        tight = await model.rank("who", WORDS, budget_s=1e-6)

        assert (ample.strategy, ample.degraded) == ("accurate", False)
        assert (tight.strategy, tight.degraded) == ("cascade", True)
        assert order(tight) == ["she", "you", "he", "man", "no", "is"]
        await model.rank_each([(query, WORDS) for query in ("who", "he", "she")], budget_s=1e-6)
        assert model.engine.metrics.registry.get_sample_value("bandrank_degraded_total") == 2  # one for each request


@pytest.mark.parametrize("depth", [3, 6])
async def test_a_budget_that_runs_out_takes_what_is_scored_by_then(depth: int) -> None:
    """Each batch holds one candidate, and the second batch is held until the answer is there. The task counts as cut,
    and the best candidate is scored first even if all were to be scored.
    """
    gate = Gate()
    settings = Settings(device="cpu", cascade_depth=depth, max_batch_rows=1)
    async with cascade(accurate=WatchedScorer(lookup(**ACCURATE), gate), settings=settings) as model:
        asked = asyncio.ensure_future(model.rank("who", WORDS, strategy="cascade", budget_s=0.5))
        await asyncio.to_thread(gate.wait_for_batch)
        gate.let_through()
        await asyncio.to_thread(gate.wait_for_batch)
        ranking = await asked
        gate.let_through(depth - 1)

    assert order(ranking) == ["she", "you", "he", "man", "no", "is"]
    assert [candidate.stage for candidate in ranking.candidates] == ["accurate", *["fast"] * 5]
    assert ranking.candidates[0].score == ACCURATE["she"]
    assert ranking.degraded
    assert ranking.reports[1].num_candidates == 1
    assert model.engine.metrics.registry.get_sample_value("bandrank_dropped_tasks_total", {"reason": "cut"}) == 1


async def test_a_budget_that_runs_out_before_anything_is_scored_takes_the_fast_scores() -> None:
    """The budget runs out while the accurate stage still encodes its candidates."""
    gate = Gate()
    async with cascade(accurate=encoded_lookup(gate, **ACCURATE)) as model:
        asked = asyncio.ensure_future(model.rank("who", WORDS, strategy="cascade", budget_s=0.5))
        await asyncio.to_thread(gate.wait_for_batch)
        ranking = await asked
        gate.let_through()

    assert order(ranking) == ["she", "you", "he", "man", "no", "is"]
    assert {candidate.stage for candidate in ranking.candidates} == {"fast"}
    assert ranking.degraded
    assert [(report.stage, report.num_candidates) for report in ranking.reports] == [("fast", 6), ("accurate", 0)]


async def test_a_stage_that_may_be_cut_leaves_time_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a budget the stage is cut some time before the request's deadline, not at it."""
    monkeypatch.setattr("bandrank.engine.served.CUT_AT", 0.25)
    gate = Gate()
    settings = Settings(device="cpu", cascade_depth=3, request_timeout_s=2.0)
    async with cascade(accurate=WatchedScorer(lookup(**ACCURATE), gate), settings=settings) as model:
        started = time.monotonic()
        ranking = await model.rank("who", WORDS, strategy="cascade")
        took_s = time.monotonic() - started
        gate.let_through(2)

    assert order(ranking) == ["she", "you", "he", "man", "no", "is"]
    assert ranking.degraded
    assert 0.5 <= took_s < 2.0


async def test_an_overloaded_second_stage_leaves_the_first_ones_ranking() -> None:
    """An admitted request is not refused half-way; its answer is marked as degraded instead."""
    gate = Gate()
    texts = [f"{word} man man man" for word in WORDS]
    pairs = [f"{one} {other}" for one in WORDS[:2] for other in WORDS[:5]]  # 30 rows
    settings = Settings(device="cpu", cascade_depth=3, max_batch_rows=2, max_waiting_rows=80, patience=1000)
    async with cascade(accurate=WatchedScorer(lookup(**ACCURATE), gate), settings=settings) as model:
        for _ in range(4):  # fills the cache, so that no encoding is expected: the first stage is 6 rows
            await model.rank("who", texts, strategy="fast")
        others = [asyncio.ensure_future(model.rank("who", ["man"], strategy="accurate"))]
        await asyncio.to_thread(gate.wait_for_batch)
        others.append(asyncio.ensure_future(model.rank("who", pairs, strategy="accurate")))
        await until(lambda: model.engine.queue.waiting_tasks == 1)
        asked = asyncio.ensure_future(model.rank("who", texts, strategy="cascade"))
        await until(lambda: model.engine.queue.waiting_tasks == 2)
        gate.let_through()
        ranking = await asked
        gate.let_through(30)
        await asyncio.gather(*others)

    assert order(ranking) == ["she", "you", "he", "man", "no", "is"]
    assert ranking.degraded
    assert [stage.stage for stage in ranking.reports] == ["fast"]


async def test_closing_lets_a_cascade_finish() -> None:
    gate = Gate()
    fast = encoded_lookup(watch=lambda _: gate(None), **FAST)  # type: ignore[arg-type]
    async with cascade(fast=fast) as model:
        asked = asyncio.ensure_future(model.rank("who", WORDS, strategy="cascade"))
        await asyncio.to_thread(gate.wait_for_batch)
        closing = asyncio.ensure_future(model.engine.close())
        await asyncio.sleep(0)
        gate.let_through()
        ranking = await asked
        await closing

    assert order(ranking) == ["he", "you", "she", "man", "no", "is"]
    assert not ranking.degraded


def test_a_fast_model_must_precompute() -> None:
    with pytest.raises(BadSetting, match="fast_model must be a scorer that precomputes"):
        files_of(lookup(), fast=lookup())


async def test_a_deeper_cascade_is_chosen_for_a_larger_budget() -> None:
    """A candidate takes 10 ms; the depth is how many of them fit the budget at the measured speed."""
    slow = WatchedScorer(lookup(**ACCURATE), lambda batch: time.sleep(0.01 * len(batch.candidates)))
    words = [" ".join(three) for three in islice(product(WORDS, repeat=3), 60)]
    settings = Settings(device="cpu", cascade_depth=60)
    async with cascade(accurate=slow, settings=settings) as model:
        await model.rank("who", words, strategy="accurate")
        depths = []
        for budget_s in (0.05, 0.3, 60.0):
            ranking = await model.rank("who", words, strategy="cascade", budget_s=budget_s)
            depths.append(ranking.reports[1].num_candidates)

    assert depths[0] < depths[1] < depths[2] == 60


async def test_a_stage_that_was_slow_once_gets_another_chance() -> None:
    """After a slow batch no candidate fits; some time later one is tried, even if much larger ones came meanwhile."""
    clock = Clock()
    async with served(lookup(**ACCURATE), fast=encoded_lookup(**FAST), clock=clock) as model:
        model.engine.queue.throughput.report("tiny score", 12, 60.0)
        for clock.now, depth in ((29.0, 0), (31.0, 1)):
            model.engine.queue.throughput.report("tiny score", 4096, 0.1)
            ranking = await model.rank("who", WORDS, strategy="cascade", budget_s=5.0)
            assert ranking.reports[1].num_candidates == depth


async def test_a_stage_scores_as_many_as_fit_though_fewer_would_seem_to_take_longer() -> None:
    """A row is expected to take 5 s in a batch of up to 15 rows, and 0.5 s in a larger one; all candidates have 20."""
    texts = [f"{word} {word}" for word in WORDS]
    async with cascade(depth=len(texts)) as model:
        for rows, seconds in ((8, 40.0), (20, 10.0)):
            model.engine.queue.throughput.report("tiny score", rows, seconds)
        ranking = await model.rank("who", texts, strategy="cascade", budget_s=20.0)

    assert ranking.reports[1].num_candidates == len(texts)
    assert not ranking.degraded


async def test_a_stage_that_precomputes_encodes_as_many_as_fit() -> None:
    """A row is expected to take 0.5 s to encode, and one candidate to fit. Cached candidates before and behind it cost
    nothing; the first that does not fit ends the stage.
    """
    texts = [f"{word} man man"[:9] for word in WORDS]
    async with cascade(accurate=encoded_lookup(**ACCURATE), depth=len(texts)) as model:
        queue, scorer = model.engine.queue, model.stages[1].scorer
        for _ in range(10):
            queue.throughput.report("tiny encode", 10, 5.0)
        cached = [texts[WORDS.index(word)] for word in ("she", "he", "is")]
        await model.rank("who", cached, strategy="accurate")
        one_s = queue.throughput.seconds("tiny encode", *scorer.tokenizer.estimate_tokens(texts[:1], 99))
        none = await model.rank("who", [*map(str.upper, texts)], strategy="cascade", budget_s=0.9 * one_s)
        ranking = await model.rank("who", texts, strategy="cascade", budget_s=1.5 * CAUTION * one_s)

    assert [(each.num_candidates, each.cache_misses) for each in none.reports] == [(6, 6), (0, 0)]
    assert order(ranking) == ["he", "you", "she", "man", "no", "is"]
    assert [each.stage for each in ranking.candidates] == ["accurate"] * 3 + ["fast"] * 3
    assert (ranking.reports[1].cache_hits, ranking.reports[1].cache_misses) == (2, 1)
    assert ranking.degraded


async def test_a_budget_bounds_the_accurate_strategy_too() -> None:
    """If the accurate stage would be late, the fast stage runs first and its scores stand in for candidates not
    reached.
    """
    async with cascade() as model:
        await model.self_test()
        ample = await model.rank("who", WORDS, strategy="accurate", budget_s=60.0)
        tight = await model.rank("who", WORDS, strategy="accurate", budget_s=1e-6)

    assert (ample.strategy, ample.bounded, ample.degraded) == ("accurate", False, False)
    assert (tight.strategy, tight.bounded, tight.degraded) == ("accurate", True, True)
    assert [report.stage for report in tight.reports] == ["fast", "accurate"]
    assert order(tight) == ["she", "you", "he", "man", "no", "is"]


async def test_a_plan_that_no_budget_can_bound_says_so() -> None:
    """A first stage scores every candidate, however small the budget, so `bounded` is false."""
    async with cascade() as model:
        ranking = await model.rank("who", WORDS, strategy="fast", budget_s=1e-6)

    assert (ranking.bounded, ranking.degraded, len(ranking.candidates)) == (False, False, len(WORDS))


async def test_three_stages_each_see_the_survivors_of_the_one_before() -> None:
    """The stages score six, three and one candidates; those that a stage did not score keep the order of the stage
    before.
    """
    last = {"you": 1.0, "he": -40.0}
    serving = assemble([files_of(lookup(**scores)) for scores in (FAST, ACCURATE, last)], Settings(device="cpu"))
    first, second, third = (scorer for scorer in serving.models.default.engine.text_scorers)
    roles = Role("fast"), Role("accurate", depth=3), Role("last", depth=1)
    stages = tuple(Stage(role, scorer) for role, scorer in zip(roles, (first, second, third), strict=True))
    model = replace(serving.models.default, stages=stages)
    ranking = await model.rank("who", WORDS)
    await serving.models.close()

    assert [(report.stage, report.num_candidates) for report in ranking.reports] == [
        ("fast", 6), ("accurate", 3), ("last", 1),
    ]  # fmt: skip
    assert order(ranking) == ["he", "you", "she", "man", "no", "is"]
    assert [candidate.stage for candidate in ranking.candidates] == ["last", "accurate", "accurate", *["fast"] * 3]
    assert all(one.score >= other.score for one, other in pairwise(ranking.candidates))
    assert ranking.candidates[0].score == last["he"]
