"""A queue for each client, on the event loop: the client whose work took the least time so far comes next."""

import asyncio
import heapq
from dataclasses import dataclass, field

from bandrank.engine.clients import Client


@dataclass
class _ClientQueue:
    """clock: the seconds that the client's work took, divided by its weight.  waiting: a heap by turn, then arrival."""

    clock: float
    waiting: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)


class FairQueue:
    """Start-time fair queueing, as between the queues of tasks (`client_queues.py`). Used from one event loop.

    Next is the client with the least clock, and of its work that with the earliest turn. Background clients come after
    all others. A new client starts level with the one served last, so that what others have waiting costs it no more
    than its share.
    """

    def __init__(self) -> None:
        self._queues: dict[Client, _ClientQueue] = {}
        self._time = 0.0  # the clock of the client served last, as it was before
        self._arrivals = 0

    def __bool__(self) -> bool:
        """Whether anything waits, even if it was cancelled."""
        return any(queue.waiting for queue in self._queues.values())

    def wait(self, client: Client, turn: float) -> asyncio.Future[None]:
        """A future that is done when the client is next with this turn."""
        self._arrivals += 1
        ready = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(client, _ClientQueue(self._time))
        heapq.heappush(queue.waiting, (turn, self._arrivals, ready))
        return ready

    def serve_next(self) -> Client | None:
        """Serves the next client and returns it; None if nothing waits."""
        self._queues = {client: queue for client, queue in self._queues.items() if queue.waiting}
        while self._queues:
            client = min(self._queues, key=lambda each: (each.background, self._queues[each].clock))
            queue = self._queues[client]
            _, _, ready = heapq.heappop(queue.waiting)
            if not ready.done():  # else it was cancelled
                self._time = queue.clock
                ready.set_result(None)
                return client
            if not queue.waiting:
                del self._queues[client]
        return None

    def charge(self, client: Client, seconds: float) -> None:
        """Charges a client for finished work, if more of it waits or the client was served last."""
        if (queue := self._queues.get(client)) is not None:
            queue.clock += seconds / client.weight
