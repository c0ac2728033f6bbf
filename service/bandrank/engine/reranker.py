"""A query and its candidates in, a ranking out."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from bandrank.engine.assembly import StageBuilder, StageModels, choose_device, connect
from bandrank.engine.batching import STOPPING, TaskQueue
from bandrank.engine.cascade import RankedCandidate, Strategy, best_first, merge, rank
from bandrank.engine.stage import CAUTION, Stage, StageName, StageReport
from bandrank.engine.worker import ScoringWorker
from bandrank.errors import InvalidInput, NotReady, Overloaded
from bandrank.metrics import Metrics
from bandrank.settings import Settings

SELF_TEST_TEXTS = ["It is.", "", "A longer candidate. " * 40]
PRECOMPUTED_AT_ONCE = 256  # texts
CPU_BATCH_TOKENS = 4096  # rows whose activations stay in a last-level cache of 32 MB at 384 x 4 bytes x 12
GPU_BATCH_TOKENS = 32768


@dataclass(frozen=True)
class Ranking:
    """Candidates from best to worst, and what the answer cost.

    strategy: the one that was used.  stages: what each stage did, in the order in which they ran.  degraded: the budget
    or the load left fewer candidates to the accurate stage than it would have seen.
    """

    candidates: list[RankedCandidate]
    strategy: Strategy
    stages: list[StageReport]
    degraded: bool

    @property
    def num_tokens(self) -> int:
        """Of all stages: the query once a stage, and every candidate it scored."""
        return sum(stage.num_tokens for stage in self.stages)


class Reranker:
    """Runs the stages that a request asks for. Used from one event loop."""

    def __init__(
        self,
        models: StageModels,
        settings: Settings,
        *,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.device, self.dtype = choose_device(settings)
        self.metrics = metrics or Metrics()
        self._settings = settings
        self._clock = clock
        self.queue = TaskQueue(
            max_waiting_tokens=settings.max_waiting_tokens,
            max_wait_s=settings.request_timeout_s,
            clock=clock,
            on_drop=lambda reason: self.metrics.dropped_tasks.labels(reason).inc(),
        )
        self.metrics.watch_queue(lambda: self.queue.waiting_tokens, lambda: self.queue.waiting_tasks)
        self.redis = connect(settings, self.metrics)
        builder = StageBuilder(settings, self.queue, self.redis, self.metrics, clock, self.device, self.dtype)
        self.stages = {name: builder.build(name, model) for name, model in models.by_stage().items()}
        self._fusion = models.fusion
        self.worker = ScoringWorker(
            self.queue,
            max_batch_tokens=settings.max_batch_tokens
            or (CPU_BATCH_TOKENS if self.device.type == "cpu" else GPU_BATCH_TOKENS),
            metrics=self.metrics,
            clock=clock,
            on_death=on_death,
        )
        self.worker.start()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._closing = False

    async def rerank(
        self, query: str, candidates: Sequence[str], *, strategy: Strategy = "auto", budget_s: float | None = None
    ) -> Ranking:
        """Ranks candidate texts for a query. Cancelling the call frees its place.

        budget_s: within which an answer is wanted; the cascade goes as deep as it allows.
        Raises InvalidInput for a strategy whose scorer is not served, Overloaded, DeadlineExceeded, ScoringFailed,
        NotReady.
        """
        async with self._admitted():
            ranking = await self._rank(query, candidates, strategy, budget_s)
        self._observe(ranking)
        return ranking

    async def precompute(self, texts: Sequence[str]) -> int:
        """Puts the fast scorer's representations of texts into the cache, so that requests find them there.

        Returns how many had to be computed. Raises InvalidInput if no scorer precomputes, and what `rerank` raises.
        """
        stage = self._served("fast")
        distinct = list(dict.fromkeys(texts))
        computed = 0
        async with self._admitted():
            for start in range(0, len(distinct), PRECOMPUTED_AT_ONCE):  # each part has a request's time
                part = distinct[start : start + PRECOMPUTED_AT_ONCE]
                computed += await stage.precompute(part, deadline=self._clock() + self._settings.request_timeout_s)
        return computed

    async def self_test(self) -> None:
        """Scores a real request with every stage, which the metrics of requests leave out. Raises what `rerank`
        raises.
        """
        for stage in self.stages:
            await self._rank("is the service able to score?", SELF_TEST_TEXTS, stage, None)

    def scored_within(self, seconds: float) -> bool:
        """Whether a batch was scored that recently."""
        return self._clock() - self.worker.last_success <= seconds

    async def close(self) -> None:
        """Takes no more requests, and returns when those admitted are answered and what they computed is stored."""
        self._closing = True
        while self._in_flight and self.worker.alive:  # a request may have more stages to run
            self._idle.clear()
            await self._idle.wait()
        self.queue.close()
        await asyncio.to_thread(self.worker.join)
        for stage in self.stages.values():
            await stage.close()
        if self.redis is not None:
            await self.redis.close()

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Keeps the queue open until the work inside is done. Raises NotReady once it is closing."""
        if self._closing:
            raise NotReady(STOPPING)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._idle.set()

    async def _rank(self, query: str, texts: Sequence[str], strategy: Strategy, budget_s: float | None) -> Ranking:
        begun = self._clock()
        deadline = begun + self._settings.request_timeout_s
        answer_by = begun + budget_s if budget_s is not None else math.inf
        used = self._choose(strategy, query, texts, budget_s)
        if used != "cascade":
            scores, stages = await self._score(used, query, texts, deadline)
            return Ranking(rank(scores, used), used, stages, degraded=False)
        fast, first = await self._served("fast").score(query, texts, deadline=deadline)
        survivors = best_first(fast)[: self._settings.cascade_depth]
        stages = [first]
        accurate: list[float] = []
        try:
            accurate, second = await self._served("accurate").score(
                query, [texts[index] for index in survivors], deadline=deadline, answer_by=min(answer_by, deadline)
            )
            stages.append(second)
            if self._fusion is not None:
                accurate = self._fusion.fuse(accurate, [fast[index] for index in survivors[: len(accurate)]])
        except Overloaded:
            pass  # the first stage's ranking is at hand: better than to turn the request away
        degraded = len(accurate) < len(survivors)
        return Ranking(merge(fast, survivors, accurate), "cascade", stages, degraded=degraded)

    async def _score(
        self, stage: StageName, query: str, texts: Sequence[str], deadline: float
    ) -> tuple[list[float], list[StageReport]]:
        """What a stage says of all texts, and the stages that ran for it: the fast one too, where the accurate one adds
        to its scores.
        """
        if stage == "fast" or self._fusion is None:
            scores, report = await self._served(stage).score(query, texts, deadline=deadline)
            return scores, [report]
        fast, first = await self._served("fast").score(query, texts, deadline=deadline)
        accurate, second = await self._served("accurate").score(query, texts, deadline=deadline)
        return self._fusion.fuse(accurate, fast), [first, second]

    def _observe(self, ranking: Ranking) -> None:
        metrics = self.metrics
        metrics.tokenize_seconds.observe(sum(stage.tokenize_s for stage in ranking.stages))
        metrics.queue_seconds.observe(sum(stage.queue_s for stage in ranking.stages))
        metrics.score_seconds.observe(sum(stage.score_s for stage in ranking.stages))
        metrics.candidates.inc(len(ranking.candidates))
        metrics.tokens.inc(ranking.num_tokens)
        metrics.degraded.inc(ranking.degraded)
        for stage in ranking.stages:
            metrics.stages.labels(stage.stage).inc()
            metrics.stage_candidates.labels(stage.stage).inc(stage.candidates)
            metrics.stage_seconds.labels(stage.stage).observe(stage.total_s)
            metrics.truncated_tokens.inc(stage.truncated_query_tokens + sum(stage.truncated_candidate_tokens))
            metrics.cache_candidates.labels("hit").inc(stage.cache_hits)
            metrics.cache_candidates.labels("miss").inc(stage.cache_misses)

    def _choose(
        self, strategy: Strategy, query: str, texts: Sequence[str], budget_s: float | None
    ) -> StageName | Literal["cascade"]:
        """The strategy to use for "auto": what is served, and the accurate scorer alone where it is no more work."""
        if strategy != "auto":
            for name in ("fast", "accurate") if strategy == "cascade" else (strategy,):
                self._served(name)
            return strategy
        if len(self.stages) == 1:
            return next(iter(self.stages))
        if len(texts) > self._settings.cascade_depth:
            return "cascade"
        fits = budget_s is None or CAUTION * self._served("accurate").predict_s(query, texts) <= budget_s
        return "accurate" if fits else "cascade"

    def _served(self, name: StageName) -> Stage:
        if name not in self.stages:
            others = " and ".join(self.stages)
            setting = "fast_model" if name == "fast" else "model"
            raise InvalidInput(f"no {name} scorer is served here, only {others}; the operator sets {setting}")
        return self.stages[name]
