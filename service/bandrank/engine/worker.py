"""The one thread that owns the scorers and their device."""

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from bandrank.engine.batching import TaskQueue
from bandrank.engine.tasks import TaskSlice
from bandrank.errors import ScoringFailed
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)


class ScoringWorker:
    """Takes batches from a queue, runs their lane, hands the results to their tasks; until the queue is closed and
    empty.
    """

    def __init__(
        self,
        queue: TaskQueue,
        *,
        max_batch_tokens: int,
        metrics: Metrics,
        clock: Callable[[], float],
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
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
        """Runs the slices together or, if that fails, in halves: only what cannot be scored alone fails."""
        begun = self._clock()
        lane = slices[0].task.lane
        rows = sum(part.rows for part in slices)
        try:
            results = lane.run(slices)
        except Exception as error:
            self._metrics.failed_batches.inc()
            log.exception("a batch failed", extra={"rows": rows, "tasks": len(slices), "lane": lane.name})
            self._retry(slices, error)
            return
        self.last_success = self._clock()
        self._metrics.batch_tokens.observe(rows)
        self._queue.throughput.report(lane.name, rows, self.last_success - begun)
        for part, result in zip(slices, results, strict=True):
            if isinstance(result, Exception):
                part.task.finish(result)
            else:
                part.task.add_results(part.start, result)

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
