"""Work that waits, in a line for each client: next comes that of the client whose work took least time so far."""

import asyncio
import heapq
from dataclasses import dataclass, field

from bandrank.engine.clients import Client


@dataclass
class _Line:
    """clock: the seconds that the client's work took, by its weight.  waiting: a heap by turn, then by arrival."""

    clock: float
    waiting: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)


class WaitingClients:
    """Who is next: the client whose clock is least, and of what it asks for that with the earliest turn. Background
    clients come after all others. Used from one event loop.

    Start-time fair queueing, as between the lines of scoring (`lines.py`): one that comes anew starts level with the
    one that was served last, so that what others have waiting for them costs it no more than its share.
    """

    def __init__(self) -> None:
        self._lines: dict[Client, _Line] = {}
        self._time = 0.0  # the clock of the client that was served last, before it was
        self._arrivals = 0

    def __bool__(self) -> bool:
        """Whether anything waits; it may be that it was cancelled."""
        return any(line.waiting for line in self._lines.values())

    def wait(self, client: Client, turn: float) -> asyncio.Future[None]:
        """A future that is done when the client is next with this turn."""
        self._arrivals += 1
        ready = asyncio.get_running_loop().create_future()
        heapq.heappush(self._lines.setdefault(client, _Line(self._time)).waiting, (turn, self._arrivals, ready))
        return ready

    def serve_next(self) -> Client | None:
        """Serves the client that is next, and returns it; None if nothing waits."""
        self._lines = {client: line for client, line in self._lines.items() if line.waiting}
        while self._lines:
            client = min(self._lines, key=lambda each: (each.background, self._lines[each].clock))
            line = self._lines[client]
            _, _, ready = heapq.heappop(line.waiting)
            if not ready.done():  # else it was cancelled
                self._time = line.clock
                ready.set_result(None)
                return client
            if not line.waiting:
                del self._lines[client]
        return None

    def charge(self, client: Client, seconds: float) -> None:
        """Counts work that is done as a client's, if more of it waits or it was served last."""
        if (line := self._lines.get(client)) is not None:
            line.clock += seconds / client.weight
