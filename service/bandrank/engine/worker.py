"""The one thread that owns a scorer and its device."""

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from bandrank.engine.batching import TaskQueue
from bandrank.engine.tasks import TaskSlice
from bandrank.errors import ScoringFailed
from bandrank.metrics import Metrics
from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged, offsets
from bandrank.models.scorer import Scorer

log = logging.getLogger(__name__)


def collate(slices: Sequence[TaskSlice]) -> tuple[ScoreBatch, list[TaskSlice]]:
    """One batch of the slices, and the slices in the order in which their candidates lie in it.

    Slices with the same query, from whichever requests, lie side by side and share it.
    """
    by_query: dict[tuple[int, ...], list[TaskSlice]] = {}
    for part in slices:
        by_query.setdefault(tuple(part.task.query), []).append(part)
    ordered = [part for parts in by_query.values() for part in parts]
    batch = ScoreBatch(
        queries=Ragged.from_token_ids(list(by_query)),
        candidates=Ragged.from_token_ids([c for part in ordered for c in part.task.candidates[part.start : part.stop]]),
        cu_candidates=offsets([sum(part.stop - part.start for part in parts) for parts in by_query.values()]),
    )
    return batch, ordered


class ScoringWorker:
    """Takes batches from a queue, scores them, hands the scores to their tasks; until the queue is closed and empty."""

    def __init__(
        self,
        scorer: Scorer,
        queue: TaskQueue,
        *,
        max_batch_tokens: int,
        metrics: Metrics,
        clock: Callable[[], float],
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._scorer = scorer
        self._queue = queue
        self._max_batch_tokens = max_batch_tokens
        self._metrics = metrics
        self._clock = clock
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
        self.last_success = -np.inf  # monotonic seconds; when a batch was last scored

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def join(self) -> None:
        """Waits until all admitted tasks are settled; the queue must be closed."""
        self._thread.join()

    def _run(self) -> None:
        batch: list[TaskSlice] = []
        try:
            with torch.inference_mode():
                while batch := self._queue.take_batch(self._max_batch_tokens):
                    self._metrics.batch_tasks.observe(len(batch))
                    self._score(batch)
        except BaseException:  # a bug here must not leave clients waiting for ever
            log.exception("the scoring thread died")
            died = "the scoring thread died; the service must be restarted"
            self._queue.close(ScoringFailed(died))
            for part in batch:
                part.task.finish(ScoringFailed(died))
            self._on_death()
            raise

    def _score(self, slices: Sequence[TaskSlice]) -> None:
        """Scores the slices together or, if that fails, in halves: only what cannot be scored alone fails."""
        begun = self._clock()
        rows = sum(part.rows for part in slices)
        try:
            batch, ordered = collate(slices)
            scores = self._scorer(batch).float().cpu().numpy()
        except Exception as error:
            self._metrics.failed_batches.inc()
            log.exception("a batch failed", extra={"rows": rows, "tasks": len(slices)})
            self._retry(slices, error)
            return
        self.last_success = self._clock()
        self._metrics.batch_tokens.observe(rows)
        self._queue.report_speed(rows, self.last_success - begun)
        place = 0
        for part in ordered:
            own = scores[place : place + part.stop - part.start]
            place += len(own)
            if np.isfinite(own).all():
                part.task.add_scores(part.start, own.tolist())
            else:
                part.task.finish(ScoringFailed("the model gave a score that is not a number"))

    def _retry(self, slices: Sequence[TaskSlice], error: Exception) -> None:
        out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if out_of_memory:
            torch.cuda.empty_cache()
            self._max_batch_tokens = max(256, self._max_batch_tokens // 2)
            log.warning("out of memory: batches shrink", extra={"max_batch_tokens": self._max_batch_tokens})
        if len(slices) > 1:
            middle = len(slices) // 2
            self._score(slices[:middle])
            self._score(slices[middle:])
            return
        part = slices[0]
        if out_of_memory and part.stop - part.start > 1:
            middle = (part.start + part.stop) // 2
            self._score([TaskSlice(part.task, part.start, middle)])
            self._score([TaskSlice(part.task, middle, part.stop)])
            return
        failure = ScoringFailed(f"scoring failed: {type(error).__name__}")
        failure.__cause__ = error
        part.task.finish(failure)
