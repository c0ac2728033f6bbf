"""The queue of tasks between the event loop and the scoring thread, and which requests it admits."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from bandrank.engine.clients import SHADOW, Client, excess
from bandrank.engine.lines import Line, take
from bandrank.engine.sizes import ADVICE, check_size
from bandrank.engine.tasks import AnyLane, AnySlice, AnyTask
from bandrank.engine.throughput import Throughput
from bandrank.engine.tickets import Ticket
from bandrank.errors import DeadlineExceeded, InputTooLarge, NotReady, Overloaded, ScoringFailed

MAX_RETRY_AFTER_S = 30.0  # a client that is told to wait longer would rather ask another replica
STOPPING = "the service is stopping; try another replica"
SURE = 0.5  # a request is refused by an estimate only if this share of it is too much
# While clients compete, the batches of those that ask too much are FINER times smaller, so that others do not wait long
# for one that has begun; and between two tasks of a request of the others the thread pauses for PAUSE_S, or for
# PAUSE_PART of the time of the batch that would begin, if that is longer: a single candidate may take seconds.
FINER, PAUSE_S, PAUSE_PART = 8, 0.005, 0.05
BACKGROUND_FINER = 32  # the same for background work: 128 rows on a CPU, a passage or two
# In full batches: what a client that has been away may be handed ahead of the others, for how much of their work it is
# remembered as competing, and how much of what is queued counts as handed out where it shows who asks too much.
AHEAD, REMEMBERED, DEMAND = 4, 64, 8
# A request is admitted behind others if it is expected to be done in this part of its time: smaller ones of its client
# may pass it, other clients take their shares, and stages that may be cut short are not expected at all.
EXPECTED_PART = 0.5


def deadline_exceeded() -> DeadlineExceeded:
    """The error for a request that ran out of time."""
    return DeadlineExceeded(
        "the request could not be scored in time; send fewer or shorter candidates, or try again later"
    )


class TaskQueue:
    """Tasks between the event loop, which puts, and the scoring thread, which takes; bounded in rows and seconds.

    max_waiting_rows: a client holds its share of them.  max_wait_s: the most that a request may take.  patience: the
    most that a request waits for, in multiples of its own work, or of a batch of max_batch_rows if that is more.

    Work of background clients has a line apart, which nobody waits for: it is handed out while no other request is
    queued or admitted, counts for nobody's waiting time or room, and is given up when the queue is closed.
    """

    def __init__(
        self,
        *,
        max_waiting_rows: float,
        max_wait_s: float,
        clock: Callable[[], float],
        max_batch_rows: int = 4096,
        patience: float = math.inf,
        throughput: Throughput | None = None,
        on_drop: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._max_waiting_rows = max_waiting_rows
        self._max_wait_s = max_wait_s
        self._max_batch_rows = max_batch_rows
        self._patience = patience
        self.clock = clock
        self._on_drop = on_drop
        self.throughput = throughput or Throughput(clock)
        self._changed = threading.Condition()
        self._lines: dict[Client, Line] = {}
        self._background = Line(SHADOW, 0.0)
        self._time = 0.0  # the latest clock at which a line was handed work
        self._batch_cost = float(max_batch_rows)  # of a full batch, of the costliest lane so far
        self._refusal: NotReady | ScoringFailed | None = None

    @property
    def waiting_rows(self) -> float:
        """The number of queued rows, without those of background work."""
        with self._changed:
            return sum(sum(line.rows.values()) for line in self._lines.values())

    @property
    def waiting_tasks(self) -> int:
        """The number of tasks that are queued, in whole or in part, without background work."""
        with self._changed:
            return sum(map(len, self._lines.values()))

    @property
    def num_admitted(self) -> int:
        """The number of requests that have their turn, without background work."""
        with self._changed:
            return sum(len(line.tickets) for line in self._lines.values())

    def wait_s(self, ticket: Ticket, cost: float) -> float:
        """The seconds of the work that goes before more work of a request, at the measured speed of each lane; 0 for
        background work, whose time nobody knows. cost: of the request's work.
        """
        with self._changed:
            return self._seconds_before(ticket, cost)

    def check_open(self) -> None:
        """Raises NotReady once the queue is closed, ScoringFailed if that is because nothing can be scored."""
        if self._refusal is not None:
            raise self._refusal.saying(str(self._refusal))  # a new one: a raised error collects a traceback

    @contextmanager
    def admitted(self, ticket: Ticket, expected: Mapping[AnyLane, float]) -> Iterator[None]:
        """Gives a request its turn, which it has until the block ends.

        expected: estimated rows that it will need, by lane; if there are any, it is promised to get them.  Raises
        Overloaded if more goes before than it may wait for, or than leaves it time enough, and what `check_open` and
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
                before_s = self._seconds_before(ticket, cost)
                self._check_wait(before_s, seconds, rows)
                self._check_end(before_s, EXPECTED_PART * self._left_s(ticket) - ticket.deference * seconds)
            line = self._line_of(ticket.client)
            ticket.turn, ticket.promised = line.turn_of(ticket.deference * cost), cost > 0
            ticket.expected_cost = cost
            ticket.expected_s = sum(self.throughput.least_seconds(name, count) for name, count in rows.items())
            line.tickets.add(ticket)
        try:
            yield
        finally:
            with self._changed:
                line.tickets.discard(ticket)
                self._forget_lines()

    def put(self, task: AnyTask, *, may_be_refused: bool = False) -> None:
        """Adds a task, in its request's turn.

        Raises Overloaded if it would not be done by its deadline, behind the work that goes before, or if its client
        would have more than its share of the waiting rows; also if more goes before than it may wait for, unless its
        request was promised to be served. Raises what `check_open` and `_check_size` raise.
        may_be_refused: whether that promise does not hold for this task.
        """
        ticket, lane, cost = task.ticket, task.lane, task.cost
        with self._changed:
            self.check_open()
            self._check_size(lane.name, task.total_rows)
            seconds = self.throughput.seconds(lane.name, task.total_rows)
            self._check_room(ticket, lane, task.total_rows)
            before_s = self._seconds_before(ticket, cost)
            if may_be_refused or not ticket.promised:
                self._check_wait(before_s, seconds, [lane.name])
            self._check_end(before_s, self._left_s(ticket) - seconds)
            line = self._line_of(ticket.client)
            if ticket.turn is None:
                ticket.turn = line.turn_of(ticket.deference * cost)
            elif not ticket.promised:
                ticket.turn += ticket.deference * cost
            ticket.promised = True
            ticket.expected_cost = max(0.0, ticket.expected_cost - cost)
            least_s = self.throughput.least_seconds(lane.name, task.total_rows)
            ticket.expected_s = max(0.0, ticket.expected_s - least_s)
            if line is not self._background:
                self._batch_cost = max(self._batch_cost, self._max_batch_rows * lane.row_cost)
            line.put(task, ticket.turn)
            self._changed.notify()

    def take_batch(self, max_batch_rows: int, *, wait: bool = True) -> list[AnySlice]:
        """The next batch, as soon as anything waits; the empty list once the queue is closed and empty.

        wait: False gives the empty list at once if nothing waits, or if that should wait for a request under way.
        """
        paused_at: float | None = None
        with self._changed:
            while True:
                self._drop_dead()
                behind = self._behind()
                if any(map(len, behind)):
                    return self._hand_out(take(behind, max_batch_rows))  # alone: others' rows would only take its time
                if any(map(len, self._lines.values())):
                    batch = take(self._lines.values(), max(1, max_batch_rows // FINER) if behind else max_batch_rows)
                    if not any(line.expected[0] for line in behind):
                        return self._hand_out(batch)
                    if not wait:
                        return []
                    paused_at = paused_at or time.monotonic()
                    if (left_s := paused_at + self._pause_s(batch) - time.monotonic()) <= 0:
                        return self._hand_out(batch)
                    self._changed.wait(left_s)
                elif self._refusal is not None or not wait:
                    return []
                elif len(self._background) and not self._in_use:
                    return self._hand_out(take([self._background], max(1, max_batch_rows // BACKGROUND_FINER)))
                else:
                    self._changed.wait()

    def discard(self, task: AnyTask, reason: str) -> None:
        """Abandons an unfinished task; its queued rows are freed at once."""
        if task.future.cancel():
            self._count_drop(task, reason)
        with self._changed:
            self._drop_dead()

    def close(self, refusal: ScoringFailed | None = None) -> None:
        """Refuses further tasks. Queued tasks are still handed out, unless `refusal` says why they cannot be scored."""
        with self._changed:
            self._refusal = refusal or NotReady(STOPPING)
            for task in self._remove(lambda task: refusal is not None or task.ticket.client.background):
                task.finish(self._refusal.saying(str(self._refusal)))
            self._changed.notify_all()

    # The lock is held by callers of what follows.

    def _pause_s(self, batch: list[AnySlice]) -> float:
        """How long the next task of a request under way is waited for before this batch begins."""
        rows = sum(part.rows for part in batch)
        return max(PAUSE_S, PAUSE_PART * self.throughput.seconds(batch[0].task.lane.name, rows))

    def _hand_out(self, batch: list[AnySlice]) -> list[AnySlice]:
        """Counts a batch as handed out, and returns it."""
        now = self.clock()
        for part in batch:
            part.task.num_taken = part.stop
            part.task.first_taken = part.task.first_taken or now
            line = self._line_of(part.task.ticket.client)
            self._time = max(self._time, line.clock)
            line.hand_out(part)
        self._remove(lambda task: task.num_taken == len(task.rows))
        return batch

    def _check_size(self, lane: str, rows: float) -> None:
        """Raises what `sizes.check_size` raises, and InputTooLarge for more rows than may wait."""
        if rows > self._max_waiting_rows:
            raise InputTooLarge(
                f"scoring this request would take {rows:.0f} rows (limit: {self._max_waiting_rows:.0f} rows): {ADVICE}"
            )
        check_size(self.throughput, lane, rows, min(rows, self._max_batch_rows), self._max_wait_s)

    def _check_room(self, ticket: Ticket, lane: AnyLane, rows: float) -> None:
        """Raises Overloaded if the client would have more than its share of the waiting rows, and not only by what the
        request itself has queued.
        """
        if math.isinf(self._max_waiting_rows):
            return
        client, waiting = ticket.client, self.waiting_rows
        held = sum(self._lines[client].rows.values()) if client in self._lines else 0.0
        excess_rows = excess(client, rows, held=held, free=self._max_waiting_rows - waiting)
        if excess_rows > 0 and any(task.ticket is not ticket for line in self._lines.values() for task in line):
            raise self._overloaded(self.throughput.seconds(lane.name, excess_rows))

    def _check_wait(self, before_s: float, seconds: float, lanes: Iterable[str]) -> None:
        """Raises Overloaded if a request that takes `seconds` may not wait for `before_s`."""
        batch_s = max(self.throughput.seconds(lane, self._max_batch_rows) for lane in lanes)
        excess_s = before_s - self._patience * max(seconds, batch_s)
        if excess_s > 0:
            raise self._overloaded(excess_s)

    def _left_s(self, ticket: Ticket) -> float:
        """The seconds that a request may still take."""
        return min(ticket.deadline - self.clock(), self._max_wait_s)

    def _check_end(self, before_s: float, most_s: float) -> None:
        """Raises Overloaded if more than `most_s` goes before a request; a request behind nothing is never refused."""
        if before_s > max(0.0, most_s):
            raise self._overloaded(before_s - max(0.0, most_s))

    def _overloaded(self, retry_after_s: float) -> Overloaded:
        return Overloaded(
            f"this request would wait too long behind others; try again in {retry_after_s:.1f} s",
            retry_after_s=min(retry_after_s, MAX_RETRY_AFTER_S),
        )

    def _seconds_before(self, ticket: Ticket, cost: float) -> float:
        """`wait_s`, for a caller that holds the lock."""
        if ticket.client.background:
            return 0.0
        line = self._lines.get(ticket.client)
        clock, own_cost, seconds = self._latest_start, 0.0, 0.0
        if line is not None:
            turn = line.turn_of(ticket.deference * cost) if ticket.turn is None else ticket.turn
            rows, expected_s, own_cost = line.before(turn, ticket)
            seconds = self.throughput.total(rows) + expected_s
            clock = line.clock if len(line) else max(line.clock, clock)
        end = clock + (own_cost + cost) / ticket.client.weight
        for other in self._lines.values():
            expected_cost, expected_s = other.expected
            if other is line or self._goes_before(end, self._reach(other)):
                continue
            if (total := other.cost + expected_cost) > 0:
                handed_out = min(max(0.0, (end - other.clock) * other.weight), total)
                seconds += (self.throughput.total(other.rows) + expected_s) * handed_out / total
        return seconds

    @property
    def _latest_start(self) -> float:
        """The clock of a client that has been away for long."""
        return self._time - AHEAD * self._batch_cost

    def _line_of(self, client: Client) -> Line:
        """The client's line, whose clock has not fallen far behind while nothing waited in it."""
        if client.background:
            return self._background
        if (line := self._lines.get(client)) is None:
            line = self._lines[client] = Line(client, self._latest_start)
        elif not len(line):
            line.clock = max(line.clock, self._latest_start)
        return line

    def _drop_dead(self) -> None:
        """Removes tasks that are settled or cancelled, or whose deadline has passed."""
        now = self.clock()
        for task in self._remove(lambda task: task.future.done() or task.deadline <= now):
            if not task.future.done():
                self._count_drop(task, "expired")
                task.finish(deadline_exceeded())

    def _count_drop(self, task: AnyTask, reason: str) -> None:
        if not task.ticket.client.background:  # which is not a request, and is counted by whoever asked for it
            self._on_drop(reason)

    def _remove(self, ended: Callable[[AnyTask], bool]) -> list[AnyTask]:
        removed = [task for line in (*self._lines.values(), self._background) for task in line.remove(ended)]
        self._forget_lines()
        return removed

    def _behind(self) -> list[Line]:
        """The lines of clients that compete with one that has been handed clearly more, or is about to be by what it
        has queued. They may be empty.
        """
        latest = max(map(self._reach, self._lines.values()), default=0.0)
        return [line for line in self._lines.values() if self._goes_before(self._reach(line), latest)]

    def _reach(self, line: Line) -> float:
        """A line's clock with what it has queued or is expected to, up to a bound, as if that had been handed out."""
        return line.clock + min(line.demand, DEMAND * self._batch_cost)

    def _goes_before(self, reach: float, other: float) -> bool:
        """Whether a line of this reach is handed its work before one of another reach is handed any."""
        return reach < other - AHEAD / 2 * self._batch_cost

    @property
    def _in_use(self) -> bool:
        """Whether a request is queued or admitted, background work left out."""
        return any(line.in_use for line in self._lines.values())

    def _forget_lines(self) -> None:
        """Forgets clients of whom nothing is queued: all of them once nothing is, and those left far behind."""
        if not self._in_use:
            self._lines.clear()
            self._time = 0.0
            self._changed.notify()  # background work may begin
            return
        oldest = self._time - REMEMBERED * self._batch_cost
        for client in [client for client, line in self._lines.items() if not line.in_use and line.clock < oldest]:
            del self._lines[client]
