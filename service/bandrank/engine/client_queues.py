"""The queues of waiting tasks, one for each client, and the choice of the candidates that make the next batch.

Between clients: start-time fair queueing (Goyal et al. 1996). The clock of a queue is its virtual time: the work that
it has been handed, divided by its client's weight. The queue with the least clock is next. The clock of a client that
has been away for a while starts somewhat behind the others, so that its requests go first as long as it asks for less
than its share.

Within a queue: the turn of a request is the work that the queue had been handed when it arrived, plus its own work. A
small request passes a large one that came before it. A large one is passed only by those that arrive while the queue is
handed as much work as the large one has, so that its delay is in proportion to its size and nothing starves. A later
priority counts as more work of the request's own when the turn is given, and never after: it passes nothing already
admitted, and what goes before it is known at admission. Work is counted in rows times what a row of the lane costs.
"""

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator

from bandrank.engine.clients import SHADOW, Client
from bandrank.engine.tasks import AnySlice, AnyTask
from bandrank.engine.throughput import Throughput
from bandrank.engine.tickets import Ticket

# In full batches: how much a client that has been away may be handed ahead of the others, for how much of their work
# it is remembered as competing, and how much of its queued work counts when judging who asks for too much.
AHEAD, REMEMBERED, DEMAND = 4, 64, 8
MOST_IDLE = 64  # clients that are remembered while they are not in use


class ClientQueue:
    """The tasks of one client in order of turn, then of arrival.

    clock: the work that it has been handed, divided by its weight.  rows: waiting rows, by lane.  tickets: the client's
    admitted requests.  As of the last `update`:
    num_rows: all waiting rows.  expected_cost, expected_s: work that its requests have yet to queue.  work: the cost of
    all of it.  finish: the clock as if its work, up to a bound, had been handed out.
    """

    def __init__(self, client: Client, clock: float) -> None:
        self.client = client
        self.weight = client.weight
        self.clock = clock
        self.rows: defaultdict[str, float] = defaultdict(float)
        self.cost = 0.0
        self.tickets: set[Ticket] = set()
        self.expected_cost = self.expected_s = self.work = self.finish = self.num_rows = 0.0
        self._handed_out = 0.0
        self._arrivals = 0
        self._waiting: list[tuple[float, int, AnyTask]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[AnyTask]:
        return (task for _, _, task in self._waiting)

    @property
    def in_use(self) -> bool:
        """Whether the client has work queued or a request admitted."""
        return bool(self._waiting or self.tickets)

    def turn_of(self, cost: float) -> float:
        """The turn of a request that arrives now and counts as `cost` of work."""
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

    def remove(self, task: AnyTask) -> None:
        """Removes a task."""
        del self._waiting[next(index for index, other in enumerate(self) if other is task)]
        self._count_out(task, task.waiting_rows)
        if not self._waiting:
            self.rows.clear()  # drops the rounding errors of fractional rows too
            self.cost = 0.0

    def before(self, turn: float, ticket: Ticket) -> tuple[defaultdict[str, float], float, float]:
        """The work of other requests whose turn is not later: queued rows by lane, the seconds of work yet to be
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


class ClientQueues:
    """The queues of all clients that have work queued or admitted, or are remembered; guarded by TaskQueue's lock.

    background: the queue of background clients, which is not among the others.  rows: those that wait in the others.
    """

    def __init__(self, throughput: Throughput, max_batch_rows: int) -> None:
        self.background = ClientQueue(SHADOW, 0.0)
        self.rows = 0.0
        self._throughput = throughput
        self._max_batch_rows = max_batch_rows
        self._by_client: dict[Client, ClientQueue] = {}
        self._idle: dict[Client, ClientQueue] = {}  # those not in use
        self._clock = 0.0  # the latest clock at which a queue was handed work
        self._batch_cost = float(max_batch_rows)  # of a full batch, of the costliest lane so far

    def __iter__(self) -> Iterator[ClientQueue]:
        return iter(self._by_client.values())

    @property
    def in_use(self) -> bool:
        """Whether a request is queued or admitted, apart from background work."""
        return len(self._idle) < len(self._by_client)

    def of(self, client: Client) -> ClientQueue:
        """The client's queue. If nothing waits in it, its clock is at least that at which a new client starts."""
        if client.background:
            return self.background
        if (queue := self._by_client.get(client)) is None:
            queue = self._by_client[client] = ClientQueue(client, self._start_clock)
        elif not len(queue):
            queue.clock = max(queue.clock, self._start_clock)
        return queue

    def rows_of(self, client: Client) -> float:
        """The number of rows that the client has queued."""
        return self._by_client[client].num_rows if client in self._by_client else 0.0

    def put(self, task: AnyTask, turn: float) -> None:
        """Adds a task to the queue of its client."""
        queue = self.of(task.ticket.client)
        queue.put(task, turn)
        cost = self._max_batch_rows * task.lane.row_cost
        if queue is not self.background and cost > self._batch_cost:
            self._batch_cost = cost
            for each in self:
                self.update(each)
        self.update(queue)

    def hand_out(self, batch: Iterable[AnySlice]) -> None:
        """Counts the slices of a batch as handed out, and removes the tasks of which nothing is left."""
        for part in batch:
            queue = self.of(part.task.ticket.client)
            self._clock = max(self._clock, queue.clock)
            queue.hand_out(part)
            if part.is_last:
                queue.remove(part.task)
            self.update(queue)

    def remove(self, task: AnyTask) -> None:
        """Removes a task, which may be background work."""
        queue = self.of(task.ticket.client)
        queue.remove(task)
        self.update(queue)

    def update(self, queue: ClientQueue) -> None:
        """Brings up to date what is known of a queue that has changed."""
        if queue is self.background:
            return
        self.rows -= queue.num_rows
        queue.num_rows = sum(queue.rows.values())
        self.rows += queue.num_rows
        queue.expected_cost = sum(ticket.expected_cost for ticket in queue.tickets)
        queue.expected_s = sum(ticket.expected_s for ticket in queue.tickets)
        queue.work = queue.cost + queue.expected_cost
        queue.finish = queue.clock + min(queue.work / queue.weight, DEMAND * self._batch_cost)
        if queue.in_use:
            self._idle.pop(queue.client, None)
        else:
            self._idle[queue.client] = queue

    def forget_idle(self) -> None:
        """Forgets clients that are not in use: all of them if none is, otherwise those that are left far behind and
        those beyond MOST_IDLE that were handed least.
        """
        if not self.in_use:
            self._by_client.clear()
            self._idle.clear()
            self._clock = self.rows = 0.0
            return
        oldest = self._clock - REMEMBERED * self._batch_cost
        for number, queue in enumerate(sorted(self._idle.values(), key=lambda each: -each.clock)):
            if number >= MOST_IDLE or queue.clock < oldest:
                del self._by_client[queue.client], self._idle[queue.client]

    def underserved(self) -> list[ClientQueue]:
        """The queues of clients that compete with one that has been handed clearly more work, or will be once its
        queued work is handed out. They may be empty.
        """
        last = max((queue.finish for queue in self), default=0.0) - self._lead
        return [queue for queue in self if queue.finish < last]

    def seconds_before(self, ticket: Ticket, cost: float) -> float:
        """The seconds of work that goes before `cost` more work of a request, at the measured speed of each lane."""
        if ticket.client.background:
            return 0.0
        own = self._by_client.get(ticket.client)
        rows: defaultdict[str, float] = defaultdict(float)  # of all clients, which share batches
        clock, own_cost, seconds = self._start_clock, 0.0, 0.0
        if own is not None:
            turn = own.turn_of(ticket.deference * cost) if ticket.turn is None else ticket.turn
            rows, seconds, own_cost = own.before(turn, ticket)
            clock = own.clock if len(own) else max(own.clock, clock)
        end = clock + (own_cost + cost) / ticket.client.weight
        last = end + self._lead
        for other in self:
            if other.clock < end and other.finish <= last and other.work > 0 and other is not own:
                handed_out = min(1.0, (end - other.clock) * other.weight / other.work)
                seconds += handed_out * other.expected_s
                for lane, count in other.rows.items():
                    rows[lane] += handed_out * count
        return self._throughput.total(rows) + seconds

    @property
    def _start_clock(self) -> float:
        """The clock at which a client starts if it is new or has long been away."""
        return self._clock - AHEAD * self._batch_cost

    @property
    def _lead(self) -> float:
        """A queue gets all its work before one whose clock finishes by more than this later gets any."""
        return AHEAD / 2 * self._batch_cost


def take(queues: Iterable[ClientQueue], max_batch_rows: int) -> list[AnySlice]:
    """The next batch: slices of waiting tasks that together have at most `max_batch_rows` rows.

    All slices are of the first one's lane. Queues are served by their clocks, which advance with the batch; among equal
    clocks, the queue whose first task is smallest comes first. The tasks of a queue are in order of turn, and the
    candidates of a task in their own. A candidate that does not fit leaves its room to later tasks. A candidate larger
    than the limit makes a batch of its own when its turn comes.
    """
    room: float = max_batch_rows
    batch: list[AnySlice] = []
    heads = []
    for number, queue in enumerate(queues):
        tasks = iter(queue)
        if (first := next(tasks, None)) is not None:
            heads.append((queue.clock, first.waiting_rows * first.lane.row_cost, number, first, tasks, queue))
    heapq.heapify(heads)
    lane = heads[0][3].lane if heads else None
    while heads and room > 0:
        clock, cost, number, task, tasks, queue = heads[0]
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
                clock += part.rows * task.lane.row_cost / queue.weight
        if (following := next(tasks, None)) is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (clock, cost, number, following, tasks, queue))
    return batch
