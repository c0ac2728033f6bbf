"""The one thread that owns the scorers and their device."""

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch

from bandrank.engine.batching import TaskQueue
from bandrank.engine.tasks import Results, TaskSlice
from bandrank.errors import ScoringFailed
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)


class _Batch:
    """Slices on their way to results. begun: clock."""

    def __init__(self, slices: Sequence[TaskSlice], begun: float) -> None:
        self.slices, self.begun = slices, begun
        self.lane = slices[0].task.lane
        self.rows = sum(part.rows for part in slices)
        self._results: Callable[[], list[Results]] | Exception | None = None

    def begin(self) -> Self:
        """Raises nothing: what goes wrong is kept for `results`, so that the batch before is handed out first."""
        try:
            self._results = self.lane.begin(self.slices)
        except Exception as error:  # noqa: BLE001  # raised later
            self._results = error
        return self

    def results(self) -> list[Results]:
        """Waits for them. Raises what the lane raises."""
        assert self._results is not None, "a batch is begun first. This is a bug."
        if isinstance(self._results, Exception):
            raise self._results
        return self._results()


class ScoringWorker:
    """Takes batches from a queue, runs their lane, hands the results to their tasks; until the queue is closed and
    empty.

    While a GPU computes one batch, the host prepares and enqueues the next, if one waits. So that the GPU has no pause
    between batches, the next is composed earlier than it would be if each were awaited: what arrives meanwhile goes
    into the one after.
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
        self._in_flight: deque[_Batch] = deque()  # in the order in which they were begun
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
        try:
            with torch.inference_mode():
                self._work_off()
        except BaseException:  # a bug here must not leave clients waiting for ever
            log.exception("the scoring thread died")
            died = "the scoring thread died; the service must be restarted"
            self._queue.close(ScoringFailed(died))
            for part in (part for batch in self._in_flight for part in batch.slices):
                part.task.finish(ScoringFailed(died))
            self._on_death()
            raise

    def _work_off(self) -> None:
        """Until nothing can come any more. What is in flight does not wait for what may."""
        while True:
            if slices := self._queue.take_batch(self._max_batch_tokens, wait=not self._in_flight):
                self._run_batch(slices)
            elif self._in_flight:
                self._finish_all_but(0)
            else:
                return

    def _run_batch(self, slices: Sequence[TaskSlice]) -> None:
        """Begins it, and finishes those before it; itself, if its lane keeps the host busy anyway."""
        self._metrics.batch_tasks.observe(len(slices))
        batch = _Batch(slices, self._clock())
        may_follow = 1 if batch.lane.overlaps else 0
        self._finish_all_but(may_follow)
        self._in_flight.append(batch)
        batch.begin()
        self._finish_all_but(may_follow)

    def _finish_all_but(self, last: int) -> None:
        while len(self._in_flight) > last:
            self._finish(self._in_flight[0])
            self._in_flight.popleft()

    def _finish(self, batch: _Batch) -> None:
        """Hands the results out or, if there are none, runs the slices in halves: only what cannot be scored alone
        fails.
        """
        try:
            results = batch.results()
        except Exception as error:
            self._metrics.failed_batches.inc()
            told = {"rows": batch.rows, "tasks": len(batch.slices), "lane": batch.lane.name}
            log.exception("a batch failed", extra=told)
            traceback.clear_frames(error.__traceback__)  # they keep tensors, and may be why memory ran out
            self._retry(batch.slices, error)
            return
        begun, self.last_success = max(batch.begun, self.last_success), self._clock()
        self._metrics.batch_tokens.observe(batch.rows)
        self._queue.throughput.report(batch.lane.name, batch.rows, self.last_success - begun)
        for part, result in zip(batch.slices, results, strict=True):
            if isinstance(result, Exception):
                part.task.finish(result)
            else:
                part.task.add_results(part.start, result)

    def _score(self, slices: Sequence[TaskSlice]) -> None:
        """A part of what failed, while nothing else is handed out."""
        self._finish(_Batch(slices, self._clock()).begin())

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
