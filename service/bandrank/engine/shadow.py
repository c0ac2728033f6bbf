"""Scores a sample of the answered requests with a second model, to see how far the two agree.

No request is affected: the scoring thread takes the shadow's work only when it has no other (engine/task_queue.py),
samples give up their memory to requests that need it, and failures of the shadow are only counted and logged.
"""

import asyncio
import hashlib
import logging
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from bandrank import logs
from bandrank.engine.agreement import agreement
from bandrank.engine.calls import Answer, Call, rank_resolved
from bandrank.engine.clients import SHADOW
from bandrank.engine.memory import Account, Memory
from bandrank.engine.options import Options
from bandrank.engine.ranking import Ranking
from bandrank.engine.served import ServedModel
from bandrank.errors import DeadlineExceeded, InputTooLarge, NotReady, Overloaded, UnknownStrategy
from bandrank.metrics import SHADOW_CUTOFFS, Metrics

log = logging.getLogger(__name__)

MAX_PENDING = 32
CANDIDATE_BYTES = 256  # for each candidate of a sample besides its text: the RankedCandidates of both models


@dataclass(frozen=True)
class Sample:
    """An answered request that the shadow is to score. account: holds its texts."""

    request_id: str
    trace_id: str
    query: str
    strategy: str | None
    options: Options
    answer: Answer
    account: Account


class Shadow:
    """Scores samples with a model, one after the other, and compares the rankings. Used from one event loop.

    strategy: the one to use; empty for each request's own.  share: the part of the requests to sample, from 0 to 1.
    answering: the names of the models whose answers are compared.
    """

    def __init__(
        self,
        model: ServedModel,
        *,
        strategy: str,
        share: float,
        answering: Iterable[str],
        memory: Memory,
        metrics: Metrics,
    ) -> None:
        self.name = f"{model.name}:{strategy}" if strategy else model.name
        self.model = model
        self._strategy = strategy
        self._share = share
        self._memory = memory
        self._metrics = metrics
        self._pending: deque[Sample] = deque()  # the first one is being scored
        self._work: asyncio.Task[None] | None = None
        self._closed = False
        self._failing = self._lacks_strategy = False
        memory.reclaim = lambda: self._drop_all("memory")
        metrics.shadow_pending.set_function(lambda: len(self._pending))
        for name in answering:
            metrics.declare_shadow(name, self.name)

    def offer(self, request_id: str, call: Call, answer: Answer) -> None:
        """Takes an answered request if it is sampled and there is room. Returns at once.

        Requests with several queries or with mixed-in scores are never sampled: their order is not one model's for one
        query.
        """
        mixed = answer.first_stage_weight > 0 or any(candidate.query is not None for candidate in call.candidates)
        if mixed or not is_sampled(request_id, self._share):
            return
        self._metrics.shadow_sampled.labels(answer.model, self.name).inc()
        account = self._memory.open(SHADOW)
        try:
            account.hold(_size(call.query + call.options.instruction, answer))
        except InputTooLarge:
            self._count_drop(answer, "too_large")
        except Overloaded:
            self._count_drop(answer, "memory")
        else:
            # Nobody sees a shadow's passages.
            options = replace(call.options, best_passages=False, pooled=answer.ranking.pooled)
            sample = Sample(request_id, logs.trace_id.get(), call.query, call.strategy, options, answer, account)
            self._put(sample)

    async def close(self) -> None:
        """Drops what is pending, without waiting for it, and takes no more."""
        self._closed = True
        work = self._work
        self._drop_all("stopping")
        if work is not None:
            with suppress(asyncio.CancelledError):
                await work

    def _put(self, sample: Sample) -> None:
        if self._closed or len(self._pending) >= MAX_PENDING:
            self._drop(sample, "stopping" if self._closed else "full")
            return
        self._pending.append(sample)
        if self._work is None:
            self._work = asyncio.create_task(self._score_all())

    async def _score_all(self) -> None:
        while self._pending:
            sample = self._pending[0]
            await self._score(sample)
            self._pending.popleft()
            sample.account.close()
        self._work = None

    async def _score(self, sample: Sample) -> None:
        """Scores a sample and observes how far the rankings agree, or counts why there is nothing to observe."""
        logs.request_id.set(sample.request_id)  # the task started with the ids of its first request
        logs.trace_id.set(sample.trace_id)
        answer = sample.answer
        strategy = self._strategy or sample.strategy
        try:
            texts = {index: text for index, text in enumerate(answer.texts) if text is not None}
            ranking = await rank_resolved(
                self.model,
                {sample.query: texts},
                client=SHADOW,
                strategy=strategy,
                options=sample.options,
            )
            if ranking.degraded:  # its time was up
                self._count_drop(answer, "late")
            else:
                self._observe(answer, ranking)
                self._failing = False
        except InputTooLarge:
            self._count_drop(answer, "too_large")
        except (DeadlineExceeded, Overloaded):
            self._count_drop(answer, "late")
        except NotReady:
            self._count_drop(answer, "stopping")
        except UnknownStrategy as error:  # requests choose it, and would fill the log
            self._metrics.shadow_failed.labels(answer.model, self.name).inc()
            if not self._lacks_strategy:
                log.warning("the shadow cannot score some requests, which from now on are only counted: %s", error)
            self._lacks_strategy = True
        except Exception:  # whatever is wrong with the shadow is not the fault of a request
            self._metrics.shadow_failed.labels(answer.model, self.name).inc()
            if not self._failing:  # a model that cannot score would fill the log
                log.exception("the shadow failed; until it scores again, its failures are only counted")
            self._failing = True

    def _observe(self, answer: Answer, ranking: Ranking) -> None:
        metrics, labels = self._metrics, (answer.model, self.name)
        agreed = agreement(answer.ranking.candidates, ranking.candidates, SHADOW_CUTOFFS)
        if agreed.tau is not None:
            metrics.shadow_kendall_tau.labels(*labels).observe(agreed.tau)
        for cutoff, overlap in agreed.overlaps.items():
            metrics.shadow_overlap.labels(*labels, cutoff).observe(overlap)
        metrics.shadow_score_drift.labels(*labels).observe(agreed.drift)
        metrics.shadow_score_shift.labels(*labels).observe(agreed.shift)
        metrics.shadow_scored.labels(*labels).inc()

    def _drop_all(self, reason: str) -> None:
        """Drops what is pending, including the sample being scored."""
        for sample in self._pending:
            self._drop(sample, reason)
        self._pending.clear()
        if self._work is not None:
            self._work.cancel()
            self._work = None

    def _drop(self, sample: Sample, reason: str) -> None:
        self._count_drop(sample.answer, reason)
        sample.account.close()

    def _count_drop(self, answer: Answer, reason: str) -> None:
        self._metrics.shadow_dropped.labels(answer.model, self.name, reason).inc()


def is_sampled(request_id: str, share: float) -> bool:
    """Whether a request is in the sample: the same in every process, and within that of every larger share."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2.0**64


def _size(query: str, answer: Answer) -> int:
    """The bytes that a sample keeps."""
    texts = [query, *(text for text in answer.texts if text is not None)]
    return sum(map(sys.getsizeof, texts)) + CANDIDATE_BYTES * len(texts)
