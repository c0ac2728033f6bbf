"""The queue of tasks between the event loop and the scoring thread, and its admission control."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from bandrank.engine.client_queues import ClientQueues, take
from bandrank.engine.clients import excess
from bandrank.engine.tasks import AnyLane, AnySlice, AnyTask
from bandrank.engine.throughput import BELIEVED_S, Throughput
from bandrank.engine.tickets import Ticket
from bandrank.engine.under_way import UnderWay
from bandrank.errors import DeadlineExceeded, InputTooLarge, NotReady, Overloaded, ScoringFailed, whole_seconds

MAX_RETRY_AFTER_S = 30.0  # a client that is told to wait longer would rather ask another replica
STOPPING = "the service is stopping; try another replica"
ADVICE = "send fewer or shorter texts"
SURE = 0.5  # an estimate refuses a request only if even this part of it is too much
# Against head-of-line blocking: while clients compete, the batches of those that ask for more than their share are
# FINER times smaller than full ones. Between two tasks of another client's request the thread pauses for PAUSE_S or, if
# longer, for PAUSE_PART of the time of the batch that would begin: a single candidate may take seconds.
FINER, PAUSE_S, PAUSE_PART = 8, 0.005, 0.05
BACKGROUND_FINER = 32  # the same for background work: 128 rows on a CPU, a passage or two
# A request is admitted behind others if it is expected to be done in this part of its time. The rest is reserve:
# smaller ones of its client may pass it, other clients take their shares, and stages that may be cut do not count.
EXPECTED_PART = 0.5
# Work that a request may wait for as often as for its own: with the default patience, nobody is refused for less than
# 0.8 s. On a GPU a full batch takes milliseconds, and a few small requests at once would be too many.
LEAST_S = 0.2


def deadline_exceeded() -> DeadlineExceeded:
    """The error for a request that ran out of time."""
    return DeadlineExceeded(
        "the request could not be scored in time; send fewer or shorter candidates, or try again later"
    )


class TaskQueue:
    """The tasks that the event loop puts and the scoring thread takes, bounded in rows and seconds.

    max_waiting_rows: shared by clients.  max_wait_s: the most that a request may take.  max_batch_rows: those of a full
    batch.  patience: how long a request may wait, in multiples of its own work, a full batch or `LEAST_S`, whichever is
    most.

    Background clients have a separate queue. Its work is handed out while no other request is queued or admitted,
    counts for nobody's waiting time or room, and is given up when the queue is closed.
    """

    def __init__(
        self,
        *,
        max_waiting_rows: float,
        max_wait_s: float,
        clock: Callable[[], float],
        max_batch_rows: int = 4096,
        patience: float = math.inf,
        on_drop: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.max_waiting_rows = max_waiting_rows
        self._max_wait_s = max_wait_s
        self._max_batch_rows = max_batch_rows
        self._finer_rows, self._background_rows = (max(1, max_batch_rows // by) for by in (FINER, BACKGROUND_FINER))
        self._patience = patience
        self.clock = clock
        self._on_drop = on_drop
        self.on_change: Callable[[], None] = lambda: None  # called when a task can be taken, or need wait no more
        self.throughput = Throughput(clock)
        self._changed = threading.Condition()
        self._queues = ClientQueues(self.throughput, max_batch_rows)
        self._tasks: dict[Future[Any], AnyTask] = {}  # what waits, background work too
        self._next_deadline = math.inf  # no task that waits has an earlier one
        self._under_way = UnderWay(self.throughput)
        self._refusal: NotReady | ScoringFailed | None = None

    @property
    def waiting_rows(self) -> float:
        """The number of queued rows, without background work."""
        with self._changed:
            return self._queues.rows

    @property
    def waiting_tasks(self) -> int:
        """The number of tasks that are queued, in whole or in part, without background work."""
        with self._changed:
            return sum(map(len, self._queues))

    @property
    def num_admitted(self) -> int:
        """The number of admitted requests, without background work."""
        with self._changed:
            return sum(len(queue.tickets) for queue in self._queues)

    def wait_s(self, ticket: Ticket, cost: float) -> float:
        """The seconds of work that goes before `cost` more work of a request, at the measured speed of each lane,
        beginning with the batches that are being computed.

        0 for background work, whose time nobody knows.
        """
        with self._changed:
            if ticket.client.background:
                return 0.0
            return self._under_way.seconds(self.clock()) + self._queues.seconds_before(ticket, cost)

    def check_open(self) -> None:
        """Raises NotReady once the queue is closed, or ScoringFailed if it was closed because nothing can be scored."""
        if self._refusal is not None:
            raise self._refusal.saying(str(self._refusal))  # a new one: a raised error collects a traceback

    @contextmanager
    def admitted(self, ticket: Ticket, expected: Mapping[AnyLane, float]) -> Iterator[None]:
        """Gives a request its turn, which it has until the block ends.

        expected: the rows that it is expected to need, by lane; if there are any, they are promised to it.  Raises
        Overloaded if the work ahead exceeds its patience or leaves it too little time, and what `check_open` and
        `_check_size` raise.
        """
        rows = {lane.name: count for lane, count in expected.items()}
        cost = sum(count * lane.row_cost for lane, count in expected.items())
        with self._changed:
            self.check_open()
            for lane, count in rows.items():
                self._check_size(lane, SURE * count)
            seconds = self.throughput.total(rows)
            if cost:
                before_s = self._queues.seconds_before(ticket, cost)
                self._check_wait(ticket, before_s, seconds, rows)
                self._check_end(before_s, EXPECTED_PART * self._left_s(ticket) - ticket.deference * seconds)
            queue = self._queues.of(ticket.client)
            ticket.turn, ticket.promised = queue.turn_of(ticket.deference * cost), cost > 0
            ticket.expected_cost = cost
            ticket.expected_s = sum(self.throughput.least_seconds(name, count) for name, count in rows.items())
            queue.tickets.add(ticket)
            self._queues.update(queue)
        try:
            yield
        finally:
            with self._changed:
                queue.tickets.discard(ticket)
                self._queues.update(queue)
                self._forget_idle()
            if self._tasks:  # they might have waited for what the request had yet to queue
                self.on_change()

    def put(self, task: AnyTask, *, may_be_refused: bool = False) -> None:
        """Adds a task, in its request's turn.

        Raises Overloaded if the work ahead would delay it beyond its deadline, or if its client would exceed its share
        of the waiting rows; also if the work ahead exceeds its patience, unless its request was promised to be served.
        Raises what `check_open` and `_check_size` raise.
        may_be_refused: whether that promise does not hold for this task.
        """
        ticket, lane, cost = task.ticket, task.lane, task.cost
        with self._changed:
            self.check_open()
            self._check_size(lane.name, task.total_rows)
            seconds = self.throughput.seconds(lane.name, task.total_rows)
            self._check_room(ticket, lane, task.total_rows)
            before_s = self._queues.seconds_before(ticket, cost)
            if may_be_refused or not ticket.promised:
                self._check_wait(ticket, before_s, seconds, {lane.name: task.total_rows})
            self._check_end(before_s, self._left_s(ticket) - seconds)
            queue = self._queues.of(ticket.client)
            if ticket.turn is None:
                ticket.turn = queue.turn_of(ticket.deference * cost)
            elif not ticket.promised:
                ticket.turn += ticket.deference * cost
            ticket.promised = True
            least_s = self.throughput.least_seconds(lane.name, task.total_rows)
            ticket.queued(cost, least_s, scores=len(task.query) > 0)
            self._queues.put(task, ticket.turn)
            self._tasks[task.future] = task
            self._next_deadline = min(self._next_deadline, task.deadline)
            task.future.add_done_callback(self._take_out)
            self._changed.notify()
        self.on_change()

    def take_batch(self, max_batch_rows: int, *, wait: bool = True) -> list[AnySlice]:
        """The next batch, as soon as anything waits; the empty list once the queue is closed and empty.

        max_batch_rows: for this one.  wait: False gives the empty list at once if nothing waits, or if the batch should
        wait for a request under way; True also says that all batches before it have ended.
        """
        paused_at: float | None = None
        with self._changed:
            if wait:
                self._under_way.end(self.clock(), last=True)
            while True:
                self._drop_late()
                behind = self._queues.underserved()
                if any(map(len, behind)):
                    return self._hand_out(take(behind, max_batch_rows))  # alone: rows of others would only delay it
                if any(map(len, self._queues)):
                    expected = any(queue.expected_cost for queue in behind)
                    if expected and not wait:
                        return []
                    batch = take(self._queues, min(max_batch_rows, self._finer_rows) if behind else max_batch_rows)
                    if not expected:
                        return self._hand_out(batch)
                    paused_at = paused_at or time.monotonic()
                    if (left_s := paused_at + self._pause_s(batch) - time.monotonic()) <= 0:
                        return self._hand_out(batch)
                    self._changed.wait(left_s)
                elif self._refusal is not None or not wait:
                    return []
                elif len(self._queues.background) and not self._queues.in_use:
                    rows = min(max_batch_rows, self._background_rows)
                    return self._hand_out(take([self._queues.background], rows))
                else:
                    self._changed.wait()

    def end_batch(self, *, last: bool) -> None:
        """Counts the oldest batch as ended.  last: whether all that were handed out have."""
        with self._changed:
            self._under_way.end(self.clock(), last=last)

    def discard(self, task: AnyTask, reason: str) -> None:
        """Abandons an unfinished task; its queued rows are freed at once."""
        with self._changed:  # or `_drop_late`, in the other thread, might count the task as well
            if task.future.cancel():
                self._count_drop(task, reason)
            self._drop_late()

    def close(self, refusal: ScoringFailed | None = None) -> None:
        """Refuses further tasks. Queued tasks are still handed out, unless `refusal` says why they cannot be scored."""
        with self._changed:
            self._refusal = refusal or NotReady(STOPPING)
            for task in [*self._tasks.values()]:
                if refusal is not None or task.ticket.client.background:
                    task.finish(self._refusal.saying(str(self._refusal)))
            self._changed.notify_all()

    # Callers of the methods below hold the lock.

    def _pause_s(self, batch: list[AnySlice]) -> float:
        """How long to wait for the next task of a request under way before this batch begins."""
        return max(PAUSE_S, PAUSE_PART * self.throughput.sure_seconds(*_lane_and_rows(batch)))

    def _hand_out(self, batch: list[AnySlice]) -> list[AnySlice]:
        """Counts a batch as handed out, and returns it."""
        now = self.clock()
        self._under_way.begin(*_lane_and_rows(batch), now)
        for part in batch:
            part.task.num_taken = part.stop
            part.task.first_taken = part.task.first_taken or now
        self._queues.hand_out(batch)
        for part in batch:
            if part.is_last:
                del self._tasks[part.task.future]
        self._forget_idle()
        return batch

    def _check_size(self, lane: str, rows: float) -> None:
        """Refuses more rows than may wait, or than an idle service would score in `max_wait_s`.

        Raises InputTooLarge if that is so at the best speed that it ever had, and Overloaded if only at the present
        speed. A service that was slow for a while scores such a request after BELIEVED_S: nothing else might show that
        it is as fast as before, since a client that gets 413 does not come again.
        """
        if rows > self.max_waiting_rows:
            raise InputTooLarge(
                f"scoring this request would take {rows:.0f} rows (limit: {self.max_waiting_rows:.0f} rows): {ADVICE}"
            )
        max_s, batch_rows = self._max_wait_s, min(rows, self._max_batch_rows)
        best_s = self.throughput.best_seconds(lane, rows, batch_rows=batch_rows)
        if best_s > max_s:
            raise InputTooLarge(f"scoring this request would take {best_s:.0f} s (limit {max_s:.0f} s): {ADVICE}")
        now_s = self.throughput.least_seconds(lane, rows, batch_rows=batch_rows)
        left_s = BELIEVED_S - self.throughput.age_s(lane, batch_rows=batch_rows)
        if now_s > max_s and left_s > 0:
            raise Overloaded(
                f"scoring this request would take {now_s:.0f} s (limit {max_s:.0f} s) at the present speed, which was "
                f"better before: {ADVICE}, or try again in {whole_seconds(left_s)} s",
                retry_after_s=left_s,
            )

    def _check_room(self, ticket: Ticket, lane: AnyLane, rows: float) -> None:
        """Raises Overloaded if the client would exceed its share of the waiting rows, unless no other request waits."""
        held, free = self._queues.rows_of(ticket.client), self.max_waiting_rows - self.waiting_rows
        excess_rows = excess(ticket.client, rows, held=held, free=free)
        if excess_rows > 0 and any(task.ticket is not ticket for queue in self._queues for task in queue):
            raise self._overloaded(self.throughput.seconds(lane.name, excess_rows))

    def _check_wait(self, ticket: Ticket, before_s: float, seconds: float, rows: Mapping[str, float]) -> None:
        """Raises Overloaded if a request that takes `seconds` may not wait for what is being computed and `before_s`.

        rows: the request's, by lane. The lane with most of its work says how long a full batch takes: in another, whose
        batches are tiny, so many rows never come together.
        """
        lane = max(rows, key=lambda lane: self.throughput.seconds(lane, rows[lane]))
        batch_s = self.throughput.seconds(lane, self._max_batch_rows)
        excess_s = self._under_way.seconds(self.clock()) + before_s - self._patience * max(seconds, batch_s, LEAST_S)
        if excess_s > 0 and not ticket.client.background:
            raise self._overloaded(excess_s)

    def _left_s(self, ticket: Ticket) -> float:
        """The seconds that a request may still take."""
        return min(ticket.deadline - self.clock(), self._max_wait_s)

    def _check_end(self, before_s: float, most_s: float) -> None:
        """Raises Overloaded if the work ahead takes longer than `most_s`; a request behind nothing is never refused."""
        if before_s > max(0.0, most_s):
            raise self._overloaded(before_s - max(0.0, most_s))

    def _overloaded(self, excess_s: float) -> Overloaded:
        wait_s = min(excess_s, MAX_RETRY_AFTER_S)
        return Overloaded(
            f"this request would wait too long behind others; try again in {whole_seconds(wait_s)} s",
            retry_after_s=wait_s,
        )

    def _drop_late(self) -> None:
        """Fails the tasks that are past their deadline."""
        now = self.clock()
        if now < self._next_deadline:
            return
        for task in [task for task in self._tasks.values() if task.deadline <= now]:
            if not task.future.done():
                self._count_drop(task, "expired")
                task.finish(deadline_exceeded())
        self._next_deadline = min((task.deadline for task in self._tasks.values()), default=math.inf)

    def _count_drop(self, task: AnyTask, reason: str) -> None:
        if not task.ticket.client.background:  # whoever asked for background work counts it
            self._on_drop(reason)

    def _take_out(self, settled: Future[Any]) -> None:
        """Takes a task that is settled out of the queue, whichever thread settled it."""
        with self._changed:
            if (task := self._tasks.pop(settled, None)) is not None:
                self._queues.remove(task)
                self._forget_idle()

    def _forget_idle(self) -> None:
        self._queues.forget_idle()
        self._changed.notify()  # a pause may be over, or background work may begin


def _lane_and_rows(batch: list[AnySlice]) -> tuple[str, float]:
    """The name of a batch's lane, and its rows."""
    return batch[0].task.lane.name, sum(part.rows for part in batch)
