"""A served model ranks candidates: their order, the timings, and what happens to requests that are given up."""

import asyncio
import random
from itertools import pairwise

import pytest
import torch
from support.models import as_served, random_text, score_batch, tiny_cross_encoder
from support.scorers import Gate, WatchedScorer, encoded_lookup, lookup
from support.serving import ranked, served
from support.tasks import Clock, until
from support.tokenizer import tiny_tokenizer

from bandrank.engine.served import ServedModel
from bandrank.engine.tokenizer import RequestTokenizer
from bandrank.errors import DeadlineExceeded, NotReady, ScoringFailed
from bandrank.metrics import Metrics
from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged
from bandrank.models.texts import TextEncoder
from bandrank.settings import Settings

TOLERANCE = 1e-5  # between a candidate's score alone and in a batch, in float32


def sample(model: ServedModel, name: str, **labels: str) -> float:
    found = model.engine.metrics.registry.get_sample_value(f"bandrank_{name}", labels)
    assert found is not None
    return found


async def test_ties_keep_the_order_of_the_request() -> None:
    """Among equal scores, the order of the search engine is the best guess."""
    async with served(lookup(man=1.0)) as model:
        ranking = await model.rank("who", ["he", "man", "no", "man", "is"] * 20)

    best = [position for position in range(100) if position % 5 in (1, 3)]
    assert ranked(ranking) == [(p, 1.0) for p in best] + [(p, 0.0) for p in range(100) if p not in best]


async def test_a_text_that_comes_twice_is_ranked_in_the_order_of_the_request() -> None:
    """The text is scored once, because the same row may round differently elsewhere in a batch."""
    rng = random.Random(1)
    texts = [random_text(rng, rng.randint(0, 30)) for _ in range(9)]
    async with served(tiny_cross_encoder()) as model:
        ranking = await model.rank("who is the man", texts * 3)

    indices = [candidate.index for candidate in ranking.candidates]
    for position in range(9):
        assert [p for p in indices if p % 9 == position] == [position, position + 9, position + 18]


async def test_a_text_that_comes_twice_is_scored_once() -> None:
    """The answer still lists and counts each occurrence."""
    batches: list[ScoreBatch] = []
    async with served(WatchedScorer(lookup(man=1.0), batches.append)) as model:
        ranking = await model.rank("who", ["man", "he he", "man"])
        apart = [await model.rank("who", [text]) for text in ("man", "he he")]

    assert len(batches[0].candidates) == 2
    assert ranked(ranking) == [(0, 1.0), (2, 1.0), (1, 0.0)]
    (stage,) = ranking.reports
    man, he = (each.reports[0].num_tokens for each in apart)
    query_tokens = len(batches[0].queries.values)
    assert (stage.num_candidates, len(stage.truncated_candidate_tokens)) == (3, 3)
    assert stage.num_tokens == 2 * man + he - 2 * query_tokens


async def test_scores_are_those_of_the_scorer() -> None:
    """The texts are tokenised, queued and cut into batches of 100 rows; the scores are those of one forward pass."""
    rng = random.Random(2)
    query, texts = "who was the man", [random_text(rng, rng.randint(0, 60)) for _ in range(30)]
    async with served(tiny_cross_encoder(), settings=Settings(device="cpu", max_batch_rows=100)) as model:
        ranking = await model.rank(query, texts)

    scorer = as_served(tiny_cross_encoder())
    tokenizer = RequestTokenizer(TextEncoder(tiny_tokenizer(), scorer), cache_bytes=0, num_threads=1, metrics=Metrics())
    tokens = tokenizer.tokenize_now(query, texts)
    tokenizer.close()
    with torch.inference_mode():
        expected = scorer(score_batch([tokens.query.tolist()], [tokens.candidates.tolist()])).tolist()
    assert [score for _, score in sorted(ranked(ranking))] == pytest.approx(expected, abs=TOLERANCE)


async def test_no_candidates_are_an_empty_ranking() -> None:
    """Nothing is queued, and nothing is scored."""
    async with served(lookup()) as model:
        ranking = await model.rank("who", [])
        assert (ranking.candidates, sample(model, "batch_tasks_count")) == ([], 0)


async def test_a_cancelled_request_frees_its_room() -> None:
    gate = Gate()
    async with served(WatchedScorer(lookup(man=1.0), gate)) as model:
        scored = asyncio.ensure_future(model.rank("who", ["man"]))
        await asyncio.to_thread(gate.wait_for_batch)
        waiting = asyncio.ensure_future(model.rank("who", ["he", "she"]))
        await until(lambda: model.engine.queue.waiting_tasks == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert (model.engine.queue.waiting_rows, model.engine.queue.waiting_tasks) == (0, 0)
        assert sample(model, "waiting_tokens") == sample(model, "waiting_tasks") == 0
        assert sample(model, "dropped_tasks_total", reason="cancelled") == 1
        gate.let_through()
        assert ranked(await scored) == [(0, 1.0)]


async def test_a_request_is_late_while_the_scorer_is_busy() -> None:
    """The request fails at its deadline without waiting for the scorer, frees its room and counts as expired."""
    gate = Gate()
    settings = Settings(device="cpu", request_timeout_s=0.05)
    async with served(WatchedScorer(lookup(), gate), settings=settings) as model:
        requests = [asyncio.ensure_future(model.rank("who", ["man"])) for _ in range(2)]
        for request in requests:
            with pytest.raises(DeadlineExceeded):
                await request

        assert (model.engine.queue.waiting_rows, model.engine.queue.waiting_tasks) == (0, 0)
        assert sample(model, "dropped_tasks_total", reason="expired") == 2
        gate.let_through(2)


async def test_a_request_that_is_late_is_not_scored() -> None:
    """The deadline passes while the request waits for its turn."""
    gate, clock = Gate(), Clock(1.0)
    settings = Settings(device="cpu", request_timeout_s=60.0)
    async with served(WatchedScorer(lookup(man=1.0), gate), settings=settings, clock=clock) as model:
        first = asyncio.ensure_future(model.rank("who", ["man"]))
        await asyncio.to_thread(gate.wait_for_batch)
        late = asyncio.ensure_future(model.rank("who", ["man"]))
        await until(lambda: model.engine.queue.waiting_tasks == 1)
        clock.now = 61.0
        gate.let_through()
        with pytest.raises(DeadlineExceeded):
            await late

        assert ranked(await first) == [(0, 1.0)]
        assert sample(model, "dropped_tasks_total", reason="expired") == 1
        assert sample(model, "batch_tasks_count") == 1


async def test_the_metrics_show_the_queue_while_a_batch_is_scored() -> None:
    """Candidates that are being scored do not count as queued."""
    gate = Gate()
    settings = Settings(device="cpu", max_batch_rows=2)
    async with served(WatchedScorer(lookup(), gate), settings=settings) as model:
        request = asyncio.ensure_future(model.rank("who", ["man", "he", "she"]))
        for waiting in (4, 2, 0):
            await asyncio.to_thread(gate.wait_for_batch)
            assert model.engine.queue.waiting_rows == waiting
            assert sample(model, "waiting_tokens") == waiting
            assert sample(model, "waiting_tasks") == (waiting > 0)
            gate.let_through()
        await request


async def test_a_closed_engine_takes_no_requests() -> None:
    async with served(lookup()) as model:
        pass

    with pytest.raises(NotReady):
        await model.rank("who", ["man"])


async def test_closing_answers_admitted_requests() -> None:
    gate = Gate()
    async with served(WatchedScorer(lookup(man=1.0), gate)) as model:
        requests = [asyncio.ensure_future(model.rank("who", ["man"]))]
        await asyncio.to_thread(gate.wait_for_batch)
        requests += [asyncio.ensure_future(model.rank("who", ["man"])) for _ in range(2)]
        await until(lambda: model.engine.queue.waiting_tasks == 2)
        gate.let_through(3)
        await model.engine.close()

        assert [ranked(ranking) for ranking in await asyncio.gather(*requests)] == [[(0, 1.0)]] * 3


async def test_a_self_test_is_no_request() -> None:
    async with served(tiny_cross_encoder()) as model:
        await model.self_test()

        assert model.engine.scored_within(3600)
        for name in ("candidates_total", "tokens_total", "truncated_tokens_total"):
            assert sample(model, name) == 0
        for name in ("tokenize", "queue", "score"):
            assert sample(model, f"{name}_seconds_count") == 0


async def test_a_self_test_encodes_anew() -> None:
    """A cached representation would show nothing about the encoder."""
    encoded: list[int] = []
    async with served(encoded_lookup(lambda tokens: encoded.append(len(tokens)))) as model:
        for number in (1, 2):
            await model.self_test()
            assert len(encoded) == number


@pytest.mark.parametrize("failed", [False, True], ids=["cancelled", "failed"])
async def test_what_was_encoded_for_a_request_that_is_given_up_is_kept(failed: bool) -> None:
    """A client that asks again then gets further each time, however short its deadline."""
    gate, encoded = Gate(), list[int]()

    def watch(tokens: Ragged) -> None:
        gate(tokens)
        if failed and encoded:
            raise RuntimeError("no more")
        encoded.append(len(tokens))

    texts = [f"man {number}" for number in range(6)]
    async with served(encoded_lookup(watch, man=1.0), settings=Settings(device="cpu", max_batch_rows=6)) as model:
        asking = asyncio.create_task(model.rank("who", texts))
        gate.let_through()
        await asyncio.to_thread(gate.wait_for_batch)
        await asyncio.to_thread(gate.wait_for_batch)
        assert sum(encoded) == 2
        if failed:
            gate.let_through()
        else:
            asking.cancel()
        with pytest.raises(ScoringFailed if failed else asyncio.CancelledError):
            await asking
        failed = False
        gate.let_through(100)
        ranking = await model.rank("who", texts)

        assert ranking.reports[0].cache_hits == 2
        assert sum(encoded) >= 6


async def test_the_time_of_the_last_batch_that_was_scored_is_known() -> None:
    clock = Clock(100.0)
    async with served(lookup(), clock=clock) as model:
        assert not model.engine.scored_within(1e9)
        await model.rank("who", ["man"])
        clock.now = 110.0
        assert model.engine.scored_within(10.0)
        assert not model.engine.scored_within(9.0)


async def test_timings_are_the_steps_of_a_request() -> None:
    """The steps follow one another within the stage, and on a clock that stands still they take 0 s."""
    async with served(lookup(), clock=Clock(1.0)) as model:
        (still,) = (await model.rank("who", ["man"])).reports
    async with served(lookup()) as model:
        (real,) = (await model.rank("who", ["man"])).reports

    steps = ["tokenize", "queue", "score"]
    assert [span.name for span in real.spans] == steps
    assert [still.seconds(step) for step in steps] == [0.0, 0.0, 0.0]
    assert all(span.start <= span.end for span in real.spans)
    assert all(before.end <= after.start for before, after in pairwise(real.spans))
    assert real.start <= real.spans[0].start
    assert real.spans[-1].end <= real.end
