"""The scoring thread: scores go back to their tasks, and a failure stays with the task that caused it."""

import random
import sys
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import torch
from support.models import as_served, random_ids, score_batch, tiny_cross_encoder
from support.scorers import Recorder, WatchedScorer, contains
from support.tasks import CLIENT
from support.working import Dies, open_queue, work_off

from bandrank.engine.lanes import ScoreLane
from bandrank.engine.tasks import Task
from bandrank.engine.tickets import Ticket
from bandrank.engine.worker import ScoringWorker
from bandrank.errors import ScoringFailed
from bandrank.metrics import Metrics
from bandrank.models.batch import ScoreBatch
from bandrank.models.ids import RaggedIds
from bandrank.models.layers.patterns import sparse
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer

TOLERANCE = 1e-5  # between a candidate's score alone and in a batch, in float32
POISON = 4  # a token id that no random text has
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)


def scorer_of(watch: Callable[[ScoreBatch], None] = lambda _: None) -> WatchedScorer:
    return WatchedScorer(as_served(tiny_cross_encoder(pattern=sparse(window=4))), watch)


@cache
def lane_of(scorer: Scorer) -> ScoreLane:
    """The lane in which a scorer scores candidates given as token ids; one for each scorer."""
    return ScoreLane("accurate score", prepare(scorer, device=CPU, dtype=torch.float32), Ragged.from_ids)


def random_task(scorer: Scorer, rng: random.Random, *, num_candidates: int, query: list[int] | None = None) -> Task:
    """A task of candidates of 0 to 40 pieces, for the given query or a random one of 5 pieces."""
    query = query or random_ids(rng, 5)
    candidates = [random_ids(rng, rng.randint(0, 40)) for _ in range(num_candidates)]
    return Task(
        lane=lane_of(scorer),
        query=np.array(query, np.int32),
        candidates=RaggedIds.of(candidates),
        rows=[scorer.num_rows(len(query), len(candidate)) for candidate in candidates],
        arrived=0.0,
        ticket=Ticket(CLIENT, float("inf")),
    )


def offline_scores(task: Task) -> list[float]:
    """The scores of the task's candidates alone, by a scorer of the same weights."""
    with torch.inference_mode():
        scores: list[float] = scorer_of()(score_batch([task.query.tolist()], [task.candidates.tolist()])).tolist()
        return scores


def value(metrics: Metrics, name: str) -> float:
    sample = metrics.registry.get_sample_value(f"bandrank_{name}")
    assert sample is not None
    return sample


@pytest.mark.parametrize("max_batch_rows", [1, 100, 4096])
def test_each_task_gets_the_scores_that_it_gets_alone(max_batch_rows: int) -> None:
    """This holds however the tasks of several queries are cut into batches."""
    rng = random.Random(1)
    queue, scorer = open_queue(), scorer_of()
    query = random_ids(rng, 3)
    tasks = [random_task(scorer, rng, num_candidates=n, query=query if n % 2 else None) for n in (1, 7, 12, 3, 2)]
    for task in tasks:
        queue.put(task)
    work_off(queue, max_batch_rows=max_batch_rows)

    for task in tasks:
        assert task.future.result(timeout=0) == pytest.approx(offline_scores(task), abs=TOLERANCE)


def test_requests_with_the_same_query_share_it() -> None:
    rng = random.Random(3)
    recorder = Recorder()
    queue, scorer = open_queue(), scorer_of(recorder)
    query = random_ids(rng, 6)
    tasks = [random_task(scorer, rng, num_candidates=3, query=q) for q in (query, None, list(query))]
    for task in tasks:
        queue.put(task)
    work_off(queue)

    assert [len(batch.queries) for batch in recorder.batches] == [2]
    assert sorted(np.diff(recorder.batches[0].cu_candidates)) == [3, 6]
    for task in tasks:
        assert task.future.result(timeout=0) == pytest.approx(offline_scores(task), abs=TOLERANCE)


def test_a_candidate_that_cannot_be_scored_fails_its_request_only() -> None:
    """The other requests of the batch are answered, and the error keeps its cause."""
    rng = random.Random(4)

    def choke(batch: ScoreBatch) -> None:
        if contains(batch, POISON):
            raise RuntimeError("choked")

    queue, scorer = open_queue(), scorer_of(choke)
    tasks = [random_task(scorer, rng, num_candidates=4) for _ in range(5)]
    tasks[2].candidates[1][0] = POISON
    for task in tasks:
        queue.put(task)
    metrics = work_off(queue)

    failure = tasks[2].future.exception(timeout=0)
    assert isinstance(failure, ScoringFailed)
    assert isinstance(failure.__cause__, RuntimeError)
    assert value(metrics, "failed_batches_total") >= 1
    for task in (*tasks[:2], *tasks[3:]):
        assert task.future.result(timeout=0) == pytest.approx(offline_scores(task), abs=TOLERANCE)


def test_the_rest_of_a_failed_request_is_not_scored() -> None:
    rng = random.Random(5)
    recorder = Recorder()

    def choke(batch: ScoreBatch) -> None:
        recorder(batch)
        if contains(batch, POISON):
            raise RuntimeError("choked")

    queue, scorer = open_queue(), scorer_of(choke)
    poisoned, other = (random_task(scorer, rng, num_candidates=6) for _ in range(2))
    poisoned.candidates[0][0] = POISON
    queue.put(poisoned)
    queue.put(other)
    work_off(queue, max_batch_rows=1)

    assert len(recorder.batches) == 1 + 6
    assert isinstance(poisoned.future.exception(timeout=0), ScoringFailed)
    assert other.future.result(timeout=0) == pytest.approx(offline_scores(other), abs=TOLERANCE)
    assert queue.waiting_rows == 0


def of_a_gpu() -> None:
    """Raises what torch raises when a GPU has no memory left."""
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("no_room", [of_a_gpu, partial(bytearray, sys.maxsize), partial(torch.empty, 1 << 60)])
def test_out_of_memory_is_answered_with_smaller_batches(
    no_room: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is split until it fits, all tasks succeed and later batches are smaller, even where `empty_cache`
    fails, as it does after a failed graph capture.
    """

    def refuse() -> None:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    rng = random.Random(6)
    limit, recorder = 600, Recorder()

    def choke(batch: ScoreBatch) -> None:
        recorder(batch)
        if len(batch.candidates.values) > limit:
            no_room()

    queue, scorer = open_queue(), scorer_of(choke)
    tasks = [random_task(scorer, rng, num_candidates=n) for n in (3, 60, 100)]
    for task in tasks:
        queue.put(task)
    metrics = work_off(queue, max_batch_rows=2000)

    for task in tasks:
        assert task.future.result(timeout=0) == pytest.approx(offline_scores(task), abs=TOLERANCE)
    assert len(recorder.batches[0].candidates.values) > limit
    sizes = [len(batch.candidates.values) for batch in recorder.batches]
    last_failure = max(number for number, size in enumerate(sizes) if size > limit)
    assert len(sizes) > last_failure + 2
    assert value(metrics, "failed_batches_total") == sum(size > limit for size in sizes)


def test_after_out_of_memory_the_budget_is_halved() -> None:
    rng = random.Random(7)
    recorder = Recorder()

    def choke(batch: ScoreBatch) -> None:
        recorder(batch)
        if len(recorder.batches) == 1:
            raise torch.OutOfMemoryError("too large")

    queue, scorer = open_queue(), scorer_of(choke)
    task = random_task(scorer, rng, num_candidates=200)
    queue.put(task)
    work_off(queue, max_batch_rows=1000)

    rows = [len(batch.candidates.values) + len(batch.candidates) for batch in recorder.batches]
    assert 900 < rows[0] <= 1000
    assert len(rows) > 4
    assert all(size <= 500 for size in rows[3:])
    assert task.future.result(timeout=0) == pytest.approx(offline_scores(task), abs=TOLERANCE)


@pytest.mark.parametrize(("most", "least_after"), [(8192, 1500), (100, 100)])
def test_one_candidate_too_large_for_the_memory_leaves_batches_large(most: int, least_after: int) -> None:
    """The limit falls to half of the smallest failed batch that held other candidates too, and no further."""
    rng = random.Random(8)

    def choke(batch: ScoreBatch) -> None:
        if contains(batch, POISON):
            raise torch.OutOfMemoryError("too large")

    scorer = scorer_of(choke)
    giant, *others = [random_task(scorer, rng, num_candidates=n) for n in (1, 4, 4, 4)]
    giant.candidates[0][0], giant.rows = POISON, [3000]
    queue = open_queue(*others, giant)
    worker = ScoringWorker(queue, max_batch_rows=most, metrics=Metrics())
    queue.close()
    worker.start()
    worker.join()

    assert isinstance(giant.future.exception(timeout=0), ScoringFailed)
    assert least_after <= worker.max_batch_rows <= most


def test_a_candidate_too_large_for_the_memory_fails_its_request_only() -> None:
    """A batch of one candidate cannot be split."""
    rng = random.Random(8)

    def choke(batch: ScoreBatch) -> None:
        if contains(batch, POISON):
            raise torch.OutOfMemoryError("too large")

    queue, scorer = open_queue(), scorer_of(choke)
    tasks = [random_task(scorer, rng, num_candidates=4) for _ in range(3)]
    tasks[1].candidates[3][0] = POISON
    for task in tasks:
        queue.put(task)
    work_off(queue)

    assert isinstance(tasks[1].future.exception(timeout=0), ScoringFailed)
    for task in (tasks[0], tasks[2]):
        assert task.future.result(timeout=0) == pytest.approx(offline_scores(task), abs=TOLERANCE)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_fails_its_request_only(bad: float) -> None:
    """Such a score could neither be ordered nor written as JSON."""

    class BadScores(WatchedScorer):
        def score(self, batch: ScoreBatch) -> torch.Tensor:
            scores = super().score(batch)
            poisoned = [bool((batch.candidates[index] == POISON).any()) for index in range(len(batch.candidates))]
            return scores.masked_fill(torch.tensor(poisoned), bad)

    rng = random.Random(9)
    queue, scorer = open_queue(), BadScores(scorer_of().inner, lambda _: None)
    tasks = [random_task(scorer, rng, num_candidates=4) for _ in range(3)]
    tasks[0].candidates[2][0] = POISON
    for task in tasks:
        queue.put(task)
    work_off(queue)

    assert isinstance(tasks[0].future.exception(timeout=0), ScoringFailed)
    for task in tasks[1:]:
        assert task.future.result(timeout=0) == pytest.approx(offline_scores(task), abs=TOLERANCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dying_thread_leaves_nobody_waiting() -> None:
    rng = random.Random(10)

    def die(_: ScoreBatch) -> None:
        raise Dies

    deaths: list[str] = []
    queue, scorer = open_queue(), scorer_of(die)
    tasks = [random_task(scorer, rng, num_candidates=n) for n in (1, 2, 9)]
    for task in tasks:
        queue.put(task)
    work_off(queue, max_batch_rows=tasks[0].total_rows, on_death=lambda: deaths.append("died"))

    assert deaths == ["died"]
    assert [task.future.done() for task in tasks] == [True, True, True]
    assert all(isinstance(task.future.exception(timeout=0), ScoringFailed) for task in tasks)
    with pytest.raises(ScoringFailed):
        queue.put(random_task(scorer, rng, num_candidates=1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_thread_dies_with_its_device(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """After an error that CUDA never forgets every batch would fail, so the thread dies and the process can be
    restarted. Other errors do not end the thread.
    """
    rng = random.Random(12)
    later: list[Exception] = []

    def fail(batch: ScoreBatch) -> None:
        if contains(batch, POISON):
            later.append(RuntimeError("CUDA error: an illegal memory access was encountered"))
        if later:
            raise later[0]

    def synchronise(device: torch.device) -> None:
        assert device == CUDA
        if later:
            raise later[0]

    monkeypatch.setattr(torch.cuda, "synchronize", synchronise)
    deaths: list[str] = []
    queue, scorer = open_queue(), scorer_of(fail)
    tasks = [random_task(scorer, rng, num_candidates=n) for n in (1, 2, 9)]
    tasks[1].candidates[0][0] = POISON
    for task in tasks:
        queue.put(task)
    work_off(queue, max_batch_rows=1, device=CUDA, on_death=lambda: deaths.append("died"))

    assert deaths == ["died"]
    assert "cuda:1 is lost" in caplog.text
    assert tasks[0].future.result(timeout=0) == pytest.approx(offline_scores(tasks[0]), abs=TOLERANCE)
    assert all(isinstance(task.future.exception(timeout=0), ScoringFailed) for task in tasks[1:])


def test_a_batch_reports_its_rows_and_its_requests() -> None:
    rng = random.Random(11)
    queue, scorer = open_queue(), scorer_of()
    tasks = [random_task(scorer, rng, num_candidates=n) for n in (2, 3)]
    for task in tasks:
        queue.put(task)
    metrics = work_off(queue)

    assert value(metrics, "batch_tokens_sum") == sum(task.total_rows for task in tasks)
    assert (value(metrics, "batch_tasks_sum"), value(metrics, "batch_tasks_count")) == (2, 1)


def test_the_token_that_fails_is_in_no_random_text() -> None:
    """The tests above rely on this."""
    assert POISON not in random_ids(random.Random(12), 2000)
