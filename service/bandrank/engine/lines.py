"""The lines in which tasks wait, one for each client, and which of their candidates make the next batch.

Between clients: start-time fair queueing (Goyal et al. 1996). A line's clock is the work that it has been handed, by
its client's weight, and the line whose clock is least is next. A client that has been away for a while starts some work
behind the others, so that its requests go first as long as it asks for less than its share.

Within a line: a request's turn is the work that the line had been handed when it arrived, plus its own work. A small
one passes a large one that came before it, and a large one is passed only by those that arrive while the line is handed
as much work as it has itself, so that its delay is in proportion to its size and nothing starves. A later priority
counts as more work of its own, when the turn is given and never after: it passes nothing that is admitted, and what
goes before it is known when it is admitted. Work is counted in rows times what a row of the lane costs.
"""

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from bandrank.engine.clients import Client
from bandrank.engine.tasks import AnySlice, AnyTask
from bandrank.engine.tickets import Ticket


class Line:
    """The tasks of one client in order of turn, then of arrival.

    clock: the work that it has been handed, by its weight.  rows: those that wait, by lane.  tickets: the client's
    requests that are admitted.
    """

    def __init__(self, client: Client, clock: float) -> None:
        self.weight = client.weight
        self.clock = clock
        self.rows: defaultdict[str, float] = defaultdict(float)
        self.cost = 0.0
        self.tickets: set[Ticket] = set()
        self._handed_out = 0.0
        self._arrivals = 0
        self._waiting: list[tuple[float, int, AnyTask]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[AnyTask]:
        return (task for _, _, task in self._waiting)

    @property
    def expected(self) -> tuple[float, float]:
        """The cost and the seconds of what its requests are still to queue."""
        return sum(each.expected_cost for each in self.tickets), sum(each.expected_s for each in self.tickets)

    @property
    def demand(self) -> float:
        """How far its clock will have moved on when all is handed out that is queued or expected."""
        return (self.cost + self.expected[0]) / self.weight

    @property
    def in_use(self) -> bool:
        """Whether a request of the client is queued or will be."""
        return bool(self._waiting or self.tickets)

    def turn_of(self, cost: float) -> float:
        """The turn of a request that arrives now and lets `cost` of work go first, its own included."""
        return self._handed_out + cost

    def put(self, task: AnyTask, turn: float) -> None:
        """Adds a task."""
        self._arrivals += 1
        insort(self._waiting, (turn, self._arrivals, task))
        self.rows[task.lane.name] += task.total_rows
        self.cost += task.cost

    def hand_out(self, part: AnySlice) -> None:
        """Counts a slice of one of its tasks as handed out."""
        rows = part.rows
        cost = rows * part.task.lane.row_cost
        self._count_out(part.task, rows)
        self._handed_out += cost
        self.clock += cost / self.weight

    def remove(self, ended: Callable[[AnyTask], bool]) -> list[AnyTask]:
        """Removes the tasks that have ended, and returns them."""
        removed, left = [], []
        for entry in self._waiting:
            task = entry[2]
            if not ended(task):
                left.append(entry)
                continue
            self._count_out(task, task.waiting_rows)
            removed.append(task)
        self._waiting = left
        if not left:
            self.rows.clear()  # also of the rounding that fractions of rows leave behind
            self.cost = 0.0
        return removed

    def before(self, turn: float, ticket: Ticket) -> tuple[Mapping[str, float], float, float]:
        """The work of other requests whose turn is not later: queued rows by lane, the seconds of what is still to be
        queued, and the cost of both.
        """
        rows: defaultdict[str, float] = defaultdict(float)
        cost = seconds = 0.0
        for other, _, task in self._waiting:
            if other > turn:
                break
            if task.ticket is not ticket:
                rows[task.lane.name] += task.waiting_rows
                cost += task.waiting_rows * task.lane.row_cost
        for admitted in self.tickets:
            if admitted is not ticket and admitted.turn is not None and admitted.turn <= turn:
                seconds += admitted.expected_s
                cost += admitted.expected_cost
        return rows, seconds, cost

    def _count_out(self, task: AnyTask, rows: float) -> None:
        self.rows[task.lane.name] -= rows
        self.cost -= rows * task.lane.row_cost


def take(lines: Iterable[Line], max_batch_rows: int) -> list[AnySlice]:
    """The next batch: slices of waiting tasks that together have at most `max_batch_rows` rows.

    All are of the lane of the first. Lines come by their clocks, which the batch moves on, and of equal ones the line
    whose first task is smallest; tasks of a line in order of turn, and the candidates of a task in their own. A
    candidate that does not fit leaves room for those of later tasks. A candidate that alone exceeds the budget makes a
    batch when its turn comes.
    """
    room: float = max_batch_rows
    batch: list[AnySlice] = []
    heads = []
    for number, line in enumerate(lines):
        tasks = iter(line)
        if (first := next(tasks, None)) is not None:
            heads.append((line.clock, first.waiting_rows * first.lane.row_cost, number, first, tasks, line))
    heapq.heapify(heads)
    lane = heads[0][3].lane if heads else None
    while heads and room > 0:
        clock, cost, number, task, tasks, line = heads[0]
        if task.lane is lane:
            stop = task.num_taken
            while stop < len(task.rows) and task.rows[stop] <= room:
                room -= task.rows[stop]
                stop += 1
            if stop == task.num_taken and not batch:
                return [AnySlice(task, stop, stop + 1)]
            if stop > task.num_taken:
                part = AnySlice(task, task.num_taken, stop)
                batch.append(part)
                clock += part.rows * task.lane.row_cost / line.weight
        if (following := next(tasks, None)) is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (clock, cost, number, following, tasks, line))
    return batch
