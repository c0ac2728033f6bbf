"""The queue of tasks, and which of their candidates make the next batch.

Order: a task's turn is the cost of the rows that the queue had handed out when the task arrived, plus its own cost. A
row's cost is relative to that of other models, so that requests to a large model and to a small one are weighed alike.
Tasks of equal cost go first come, first served; a small one passes a large one that came before it; and a large one is
passed only by tasks that arrive while the queue hands out as much work as it has itself, so that its delay is in
proportion to its size and nothing starves. (Earliest deadline first, with a deadline proportional to size; compare
start-time fair queueing, Goyal et al. 1996.)
"""

import threading
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from bandrank.engine.tasks import Task, TaskSlice
from bandrank.engine.throughput import Throughput
from bandrank.errors import DeadlineExceeded, InputTooLarge, NotReady, Overloaded, ScoringFailed

# The queue and the scoring thread treat tasks of all lanes alike; lanes know the types of their candidates and results.
AnyTask: TypeAlias = Task[Any, Any]
AnySlice: TypeAlias = TaskSlice[Any, Any]

MOST_RETRY_AFTER_S = 30.0  # a client that is told to wait longer would rather ask another replica
STOPPING = "the service is stopping; try another replica"


def deadline_exceeded() -> DeadlineExceeded:
    """The error for a request that ran out of time."""
    return DeadlineExceeded(
        "the request could not be scored in time; send fewer or shorter candidates, or try again later"
    )


def take(waiting: Sequence[AnyTask], max_batch_rows: int) -> list[AnySlice]:
    """The next batch: slices of `waiting`, which is in order of turn, that together have at most `max_batch_rows`
    rows.

    All are of the first task's lane. A task's candidates are taken in order. A candidate that does not fit leaves room
    for those of later tasks. A candidate that alone exceeds the budget makes a batch when its turn comes.
    """
    batch: list[AnySlice] = []
    room: float = max_batch_rows
    for task in waiting:
        if room <= 0:
            break
        if task.lane is not waiting[0].lane:
            continue
        stop = task.num_taken
        while stop < len(task.rows) and task.rows[stop] <= room:
            room -= task.rows[stop]
            stop += 1
        if stop == task.num_taken and not batch:
            return [AnySlice(task, stop, stop + 1)]
        if stop > task.num_taken:
            batch.append(AnySlice(task, task.num_taken, stop))
    return batch


class TaskQueue:
    """Tasks between the event loop, which puts, and the scoring thread, which takes; bounded in rows and seconds."""

    def __init__(
        self,
        *,
        max_waiting_rows: float,
        max_wait_s: float,
        clock: Callable[[], float],
        throughput: Throughput | None = None,
        on_drop: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._max_waiting_rows = max_waiting_rows
        self._max_wait_s = max_wait_s
        self.clock = clock
        self._on_drop = on_drop
        self.throughput = throughput or Throughput()
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, AnyTask]] = []  # in order of turn, then of arrival
        self._handed_out = 0.0
        self._arrivals = 0
        self._rows: defaultdict[str, float] = defaultdict(float)  # that wait, by lane
        self._refusal: NotReady | ScoringFailed | None = None

    @property
    def waiting_rows(self) -> float:
        """The number of queued rows."""
        with self._changed:
            return sum(self._rows.values())

    @property
    def wait_s(self) -> float:
        """The seconds that the queue will take, at the measured speed of each lane."""
        with self._changed:
            return self.throughput.total(self._rows)

    @property
    def waiting_tasks(self) -> int:
        """The number of tasks that are queued, in whole or in part."""
        return len(self._waiting)

    def check_open(self) -> None:
        """Raises NotReady once the queue is closed, ScoringFailed if that is because nothing can be scored."""
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))  # a new one: a raised error collects a traceback

    def check_size(self, lane: str, rows: float) -> None:
        """Raises InputTooLarge for a request of so many rows that it could not be scored in time by an idle service."""
        seconds = self.throughput.seconds(lane, rows)
        if rows > self._max_waiting_rows or seconds > self._max_wait_s:
            raise InputTooLarge(
                f"scoring this request would take {seconds:.0f} s and {rows:.0f} rows: send fewer or shorter texts "
                f"(limits: {self._max_wait_s:.0f} s, {self._max_waiting_rows:.0f} rows)"
            )

    def put(self, task: AnyTask) -> None:
        """Adds a task.

        Raises Overloaded if it would not be done by its deadline, behind the work whose turn comes before, and what
        `check_open` and `check_size` raise.
        """
        with self._changed:
            self.check_open()
            self.check_size(task.lane.name, task.total_rows)
            turn = self._handed_out + task.cost
            seconds = self._seconds_until(turn) + self.throughput.seconds(task.lane.name, task.total_rows)
            late_s = seconds - min(task.deadline - self.clock(), self._max_wait_s)
            excess_rows = sum(self._rows.values()) + task.total_rows - self._max_waiting_rows
            if self._waiting and (late_s > 0 or excess_rows > 0):
                retry_after_s = max(late_s, self.throughput.seconds(task.lane.name, excess_rows), 0.0)
                raise Overloaded(
                    f"{len(self._waiting)} requests ({self.waiting_rows:.0f} rows) wait; "
                    f"try again in {retry_after_s:.1f} s",
                    retry_after_s=min(retry_after_s, MOST_RETRY_AFTER_S),
                )
            self._arrivals += 1
            insort(self._waiting, (turn, self._arrivals, task))
            self._rows[task.lane.name] += task.total_rows
            self._changed.notify()

    def take_batch(self, max_batch_rows: int, *, wait: bool = True) -> list[AnySlice]:
        """The next batch, as soon as anything waits; the empty list once the queue is closed and empty.

        wait: False gives the empty list at once if nothing waits.
        """
        with self._changed:
            while True:
                self._drop_dead()
                if self._waiting:
                    break
                if self._refusal is not None or not wait:
                    return []
                self._changed.wait()
            batch = take([task for _, _, task in self._waiting], max_batch_rows)
            now = self.clock()
            for part in batch:
                part.task.num_taken = part.stop
                part.task.first_taken = part.task.first_taken or now
                self._rows[part.task.lane.name] -= part.rows
                self._handed_out += part.rows * part.task.lane.row_cost
            self._keep([entry for entry in self._waiting if entry[2].num_taken < len(entry[2].rows)])
            return batch

    def discard(self, task: AnyTask, reason: str) -> None:
        """Abandons an unfinished task; its queued rows are freed at once."""
        if task.future.cancel():
            self._on_drop(reason)
        with self._changed:
            self._drop_dead()

    def close(self, refusal: ScoringFailed | None = None) -> None:
        """Refuses further tasks. Queued tasks are still handed out, unless `refusal` says why they cannot be scored."""
        with self._changed:
            self._refusal = refusal or NotReady(STOPPING)
            if refusal is not None:
                for _, _, task in self._waiting:
                    task.finish(ScoringFailed(str(refusal)))
                self._keep([])
            self._changed.notify_all()

    def _seconds_until(self, turn: float) -> float:
        """How long the queued rows will take whose turn comes before. The lock is held."""
        rows: defaultdict[str, float] = defaultdict(float)
        for other, _, task in self._waiting:
            if other > turn:
                break
            rows[task.lane.name] += task.waiting_rows
        return self.throughput.total(rows)

    def _drop_dead(self) -> None:
        """Removes tasks that are settled or cancelled, or whose deadline has passed. The lock must be held."""
        now = self.clock()
        alive = []
        for entry in self._waiting:
            task = entry[2]
            if not task.future.done() and task.deadline > now:
                alive.append(entry)
                continue
            self._rows[task.lane.name] -= task.waiting_rows
            if not task.future.done():
                self._on_drop("expired")
                task.finish(deadline_exceeded())
        self._keep(alive)

    def _keep(self, waiting: list[tuple[float, int, AnyTask]]) -> None:
        """Replaces the queued tasks. The lock must be held."""
        self._waiting = waiting
        if not waiting:
            self._rows.clear()  # also of the rounding that fractions of rows leave behind
