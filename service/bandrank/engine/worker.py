"""The scoring thread, which alone uses the scorers and their device."""

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
import torch

from bandrank.engine.batch_limit import BatchLimit
from bandrank.engine.task_queue import TaskQueue
from bandrank.engine.tasks import AnySlice, Outcome, Outcomes
from bandrank.errors import ScoringFailed
from bandrank.metrics import Metrics
from bandrank.models.arriving import Arriving
from bandrank.models.placement import is_lost, is_out_of_memory

log = logging.getLogger(__name__)

CPU = torch.device("cpu")


class _Batch:
    """Slices that a lane computes together. started: monotonic seconds.  background: whether no request waits."""

    def __init__(self, slices: Sequence[AnySlice], started: float) -> None:
        self.slices, self.started = slices, started
        self.lane = slices[0].task.lane
        self.background = slices[0].task.ticket.client.background
        self.rows = sum(part.rows for part in slices)
        self.hidden = False  # whether it ended before the batch ahead, so that nobody knows how long it took
        self._early: set[int] = set()  # the indices of slices whose outcome has come
        self._arriving: Outcomes[Any] | Exception | None = None

    @property
    def left(self) -> list[AnySlice]:
        """The slices whose outcome has not come."""
        return [part for index, part in enumerate(self.slices) if index not in self._early]

    def begin(self) -> Self:
        """Starts the lane. `outcomes` raises its error, so that the previous batch is handed out first."""
        try:
            self._arriving = self.lane.begin(self.slices)
        except Exception as error:  # noqa: BLE001  # raised later
            self._arriving = error
        return self

    @property
    def waits(self) -> bool:
        """Whether `early` waits for more, when called again, and `wake` ends that."""
        return isinstance(self._arriving, Arriving) and self._arriving.wake is not None

    @property
    def ended(self) -> bool:
        """Whether its results are known to be complete."""
        return not isinstance(self._arriving, Arriving) or self._arriving.ended()

    def wake(self) -> None:
        """Makes `early` return, from any thread, if there is room already."""
        arriving = self._arriving  # another thread may take it away
        if isinstance(arriving, Arriving) and arriving.wake is not None:
            arriving.wake()

    def early(self) -> Iterator[tuple[AnySlice, Outcome[Any]]]:
        """Waits until the next batch would begin soon, and yields the slices that are complete meanwhile."""
        if not isinstance(self._arriving, Arriving):
            return
        try:
            for index, outcome in self._arriving.early():
                self._early.add(index)
                yield self.slices[index], outcome
        except Exception:  # `outcomes` reads all results once more, and raises what is wrong
            log.debug("results of a part could not be read", exc_info=True)

    def outcomes(self) -> Iterator[tuple[AnySlice, Outcome[Any]]]:
        """Waits for the end, and gives the outcomes of the slices that are left. Raises what the lane raises."""
        assert self._arriving is not None, "a batch starts before it ends. This is a bug."
        arriving, self._arriving = self._arriving, None  # a failed batch holds no memory while it is retried
        if isinstance(arriving, Exception):
            raise arriving
        outcomes = enumerate(zip(self.slices, arriving(), strict=True))
        return (outcome for index, outcome in outcomes if index not in self._early)


class ScoringWorker:
    """Takes batches from a queue, runs their lanes and hands the results to their tasks until the queue is closed and
    empty.

    While a GPU computes a batch, the host prepares and enqueues the next one, so that the GPU does not pause between
    batches. On a CPU the next one starts once all parts of the batch have begun and a task waits, so that no worker
    waits for the slowest. Tasks that arrive after that go into the batch after it; those whose parts have ended get
    their results.

    device: of the lanes' scorers; the thread dies if this process loses it.
    """

    def __init__(
        self,
        queue: TaskQueue,
        *,
        max_batch_rows: int,
        metrics: Metrics,
        device: torch.device = CPU,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue = queue
        self._device = device
        self._limit = BatchLimit(max_batch_rows)
        self._metrics = metrics
        self._clock = queue.clock
        self.on_death = on_death
        queue.on_change = self._wake
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
        self._in_flight: deque[_Batch] = deque()  # in the order of their starts
        self.died = False
        self._taken: Sequence[AnySlice] = ()  # the batch that is not in flight yet
        self._busy_since: float | None = None  # when the current work began, or its latest part ended
        self.last_success = -np.inf  # when a batch was last scored, in monotonic seconds

    @property
    def max_batch_rows(self) -> int:
        """The most rows that a batch may have at present."""
        return self._limit.rows

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def stuck_s(self) -> float:
        """How long the thread has been at the same part of its work, in seconds; 0 while it waits for more."""
        since = self._busy_since
        return 0.0 if since is None else self._clock() - since

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits until all admitted tasks are settled, once the queue is closed; returns whether the thread ended in
        time.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def abandon(self, why: str) -> None:
        """Settles every task with an error, including those being scored, and refuses further ones."""
        self._queue.close(ScoringFailed(why))
        for part in (*self._taken, *(part for batch in tuple(self._in_flight) for part in batch.slices)):
            part.task.finish(ScoringFailed(why))

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._run_batches()
        except BaseException:  # a bug must not leave clients waiting for ever
            self.died = True
            log.exception("the scoring thread died")
            self.abandon("the scoring thread died; restart the service")
            self.on_death()
            raise

    def _run_batches(self) -> None:
        """Runs until the queue is closed and empty. Batches in flight are finished before the thread waits for more."""
        while self._run_next():  # whose frame ends each time, or a waiting thread would keep the last batch's memory
            pass

    def _run_next(self) -> bool:
        """Runs the next batch or, if none is to begin yet, waits for those in flight; returns False at the end."""
        newest = self._in_flight[-1] if self._in_flight else None
        if newest is None:
            self._busy_since = None
        else:
            self._hand_out_early(newest)
            if newest.ended:
                self._finish_all_but(0)
                return True
        if slices := self._queue.take_batch(self.max_batch_rows, wait=not self._in_flight):
            self._taken, self._busy_since = slices, self._clock()
            self._run_batch(slices)
        elif newest is None:
            return False
        elif not newest.waits:
            self._finish_all_but(0)
        return True

    def _wake(self) -> None:
        """Lets the thread look at the queue although a batch is being computed."""
        with suppress(IndexError):  # none is, any more
            self._in_flight[-1].wake()

    def _run_batch(self, slices: Sequence[AnySlice]) -> None:
        """Starts a batch and finishes those before it; finishes the batch too unless its lane overlaps."""
        batch = _Batch(slices, self._clock())
        if not batch.background:
            self._metrics.batch_tasks.observe(len(slices))
        may_follow = 1 if batch.lane.overlaps else 0
        self._finish_all_but(may_follow)
        self._in_flight.append(batch)
        self._taken = ()
        batch.begin()
        self._finish_all_but(may_follow)

    def _finish_all_but(self, last: int) -> None:
        while len(self._in_flight) > last:
            self._finish(self._in_flight[0])
            self._in_flight.popleft()
            for behind in self._in_flight:
                behind.hidden = behind.ended

    def _finish(self, batch: _Batch) -> None:
        """Hands out the results of a batch; a batch that failed is run again in halves.

        So only a slice that cannot be scored alone fails. Background work fails as a whole: requests would wait for
        further attempts.
        """
        while batch.waits and not batch.ended:  # requests are answered while another batch is behind, too
            self._hand_out_early(batch)
        try:
            outcomes = batch.outcomes()
            self._busy_since = self._clock()
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # frames keep tensors, perhaps those that exhausted the memory
            if is_lost(self._device):
                raise RuntimeError(
                    f"{self._device} is lost: no batch can be scored by this process any more"
                ) from error
            if batch.background:
                self._fail(batch.left, error)
                return
            self._metrics.failed_batches.inc()
            facts = {"rows": batch.rows, "tasks": len(batch.slices), "lane": batch.lane.name}
            log.exception("a batch failed", extra=facts)
            self._retry(batch.left, error)
            return
        started, self.last_success = max(batch.started, self.last_success), self._clock()
        if batch.background:
            self._metrics.shadow_rows.inc(batch.rows)
        else:
            self._metrics.batch_tokens.observe(batch.rows)
        if not batch.hidden:
            self._queue.throughput.report(batch.lane.name, batch.rows, self.last_success - started)
        self._limit.succeed(batch.rows)
        # Or the next stages of its requests would be admitted behind it.
        self._queue.end_batch(last=not self._taken and batch is self._in_flight[-1])
        for part, outcome in outcomes:
            self._hand_out(part, outcome)

    def _run_now(self, slices: Sequence[AnySlice]) -> None:
        """Runs a part of a failed batch, without tasks that are settled; no other batch is handed out meanwhile."""
        if wanted := [part for part in slices if not part.task.future.done()]:
            self._finish(_Batch(wanted, self._clock()).begin())

    def _retry(self, slices: Sequence[AnySlice], error: Exception) -> None:
        out_of_memory = is_out_of_memory(error)
        if out_of_memory:
            with suppress(RuntimeError):  # raised by torch before 2.12, once a capture of a CUDA graph has failed
                torch.cuda.empty_cache()
        if out_of_memory and sum(map(len, slices)) > 1:  # one candidate that is too large says nothing about others
            self._limit.fail(sum(part.rows for part in slices))
            log.warning("out of memory: batches shrink", extra={"max_batch_rows": self.max_batch_rows})
        if len(slices) > 1:
            middle = len(slices) // 2
            self._run_now(slices[:middle])
            self._run_now(slices[middle:])
            return
        if not slices:
            return
        part = slices[0]
        if out_of_memory and len(part) > 1:
            middle = (part.start + part.stop) // 2
            self._run_now([AnySlice(part.task, part.start, middle)])
            self._run_now([AnySlice(part.task, middle, part.stop)])
            return
        self._fail(slices, error)

    def _hand_out_early(self, batch: _Batch) -> None:
        for part, outcome in batch.early():
            self._hand_out(part, outcome)
            self._busy_since = self._clock()

    @staticmethod
    def _hand_out(part: AnySlice, outcome: Outcome[Any]) -> None:
        if isinstance(outcome, Exception):
            part.task.finish(outcome)
        else:
            part.task.add_results(outcome)

    @staticmethod
    def _fail(slices: Sequence[AnySlice], error: Exception) -> None:
        """Settles the tasks of slices that could not be scored."""
        for part in slices:
            failure = ScoringFailed(f"scoring failed: {type(error).__name__}")
            failure.__cause__ = error
            part.task.finish(failure)
