"""A query and its candidates in, a ranking out."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bandrank.engine.batching import TaskQueue, deadline_exceeded
from bandrank.engine.tasks import ScoreTask
from bandrank.engine.tokenizer import RequestTokenizer
from bandrank.engine.worker import ScoringWorker
from bandrank.metrics import Metrics
from bandrank.models.loading import LoadedModel
from bandrank.settings import BadSetting, Settings

CPU_BATCH_TOKENS = 4096  # rows whose activations stay in a last-level cache of 32 MB at 384 x 4 bytes x 12
GPU_BATCH_TOKENS = 32768


@dataclass(frozen=True)
class RankedCandidate:
    """A candidate's place in the request and its raw score; higher is better."""

    index: int
    score: float


@dataclass(frozen=True)
class Timings:
    """Seconds that a request spent on each step."""

    tokenize_s: float
    queue_s: float
    score_s: float


@dataclass(frozen=True)
class Ranking:
    """Candidates from best to worst, ties in the order of the request; and what the answer cost.

    num_tokens: the query once, and every candidate.
    """

    candidates: list[RankedCandidate]
    timings: Timings
    num_tokens: int
    truncated_query_tokens: int
    truncated_candidate_tokens: list[int]


class Reranker:
    """Tokenises, queues, awaits the scores, sorts. One per model; used from one event loop."""

    def __init__(
        self,
        model: LoadedModel,
        settings: Settings,
        *,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.device, self.dtype = choose_device(settings)
        self.metrics = metrics or Metrics()
        self._scorer = model.scorer.prepare(device=self.device, dtype=self.dtype)
        self._clock = clock
        self._timeout_s = settings.request_timeout_s
        self._tokenizer = RequestTokenizer(
            model.tokenizer,
            self._scorer,
            cache_bytes=settings.token_cache_bytes,
            num_threads=settings.tokenizer_threads or max(1, (os.cpu_count() or 1) // 2),
            metrics=self.metrics,
        )
        self.queue = TaskQueue(
            max_waiting_tokens=settings.max_waiting_tokens,
            max_wait_s=settings.request_timeout_s,
            clock=clock,
            on_drop=lambda reason: self.metrics.dropped_tasks.labels(reason).inc(),
        )
        self.metrics.watch_queue(lambda: self.queue.waiting_tokens, lambda: self.queue.waiting_tasks)
        self.worker = ScoringWorker(
            self._scorer,
            self.queue,
            max_batch_tokens=settings.max_batch_tokens
            or (CPU_BATCH_TOKENS if self.device.type == "cpu" else GPU_BATCH_TOKENS),
            metrics=self.metrics,
            clock=clock,
            on_death=on_death,
        )
        self.worker.start()

    async def rerank(self, query: str, candidates: Sequence[str]) -> Ranking:
        """Ranks candidate texts for a query. Cancelling the call frees its place.

        Raises Overloaded, DeadlineExceeded, ScoringFailed, NotReady.
        """
        ranking = await self._rank(query, candidates)
        metrics = self.metrics
        metrics.tokenize_seconds.observe(ranking.timings.tokenize_s)
        metrics.queue_seconds.observe(ranking.timings.queue_s)
        metrics.score_seconds.observe(ranking.timings.score_s)
        metrics.candidates.inc(len(ranking.candidates))
        metrics.tokens.inc(ranking.num_tokens)
        metrics.truncated_tokens.inc(ranking.truncated_query_tokens + sum(ranking.truncated_candidate_tokens))
        return ranking

    async def self_test(self) -> None:
        """Scores a real request, which the metrics of requests leave out. Raises what `rerank` raises."""
        await self._rank("is the service able to score?", ["It is.", "", "A longer candidate. " * 40])

    def scored_within(self, seconds: float) -> bool:
        """Whether a batch was scored that recently."""
        return self._clock() - self.worker.last_success <= seconds

    def close(self) -> None:
        """Takes no more requests, and returns when those admitted are answered."""
        self.queue.close()
        self.worker.join()
        self._tokenizer.close()

    async def _rank(self, query: str, candidates: Sequence[str]) -> Ranking:
        begun = self._clock()
        self.queue.check_open()
        tokens = await self._tokenizer.tokenize(query, candidates)
        task = ScoreTask(
            query=tokens.query,
            candidates=tokens.candidates,
            rows=[self._scorer.num_rows(len(tokens.query), len(ids)) for ids in tokens.candidates],
            arrived=self._clock(),
            deadline=begun + self._timeout_s,
        )
        scores = await self._scores(task) if task.candidates else []
        done = self._clock()
        taken = task.first_taken or done
        order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
        return Ranking(
            candidates=[RankedCandidate(int(index), scores[index]) for index in order],
            timings=Timings(tokenize_s=task.arrived - begun, queue_s=taken - task.arrived, score_s=done - taken),
            num_tokens=len(tokens.query) + sum(len(ids) for ids in tokens.candidates),
            truncated_query_tokens=tokens.truncated_query_tokens,
            truncated_candidate_tokens=tokens.truncated_candidate_tokens,
        )

    async def _scores(self, task: ScoreTask) -> list[float]:
        """Raw scores of the task's candidates, once the scoring thread has them."""
        self.queue.put(task)
        future = asyncio.wrap_future(task.future)
        reason = "cancelled"
        try:
            finished, _ = await asyncio.wait([future], timeout=task.deadline - self._clock())
            if not finished:
                reason = "expired"
                raise deadline_exceeded()
            return future.result()
        finally:
            if not task.future.done():
                self.queue.discard(task, reason)


def choose_device(settings: Settings) -> tuple[torch.device, torch.dtype]:
    """Where and in what dtype to score. "auto" is a GPU in float16 if there is one, else the CPU in float32.

    Raises BadSetting for a device that is not there.
    """
    name = settings.device if settings.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise BadSetting(f"BANDRANK_DEVICE must be auto, cpu, cuda or cuda:N, got {name!r}: {reason}") from error
    if settings.dtype == "auto":
        return device, torch.float32 if device.type == "cpu" else torch.float16
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return device, dtypes[settings.dtype]
