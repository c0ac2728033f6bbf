"""Runs one computation per key at a time, however many callers need it, unless it is much larger than a caller's.

Callers join only computations of their own owner, because another owner's may have to wait longer for its turn.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from bandrank.errors import DeadlineExceeded, Overloaded

Compute = Callable[[list[bytes]], Coroutine[Any, Any, dict[bytes, bytes]]]

# Errors that concern the caller who started a computation, not its keys: one who joined may have been admitted earlier.
STARTER_ERRORS = (DeadlineExceeded, TimeoutError, Overloaded)

# A caller joins a computation of at most SMALL keys, or of MAX_TIMES_LARGER times as many as it needs. Rather than wait
# for a larger one it computes the shared keys again; its own size bounds the work done twice.
SMALL, MAX_TIMES_LARGER = 16, 4


@dataclass(eq=False)
class Flight:
    """A computation under way, for callers of one owner.

    num_waiting: callers that need one of its keys, including the one that started it.
    """

    owner: Hashable
    keys: frozenset[bytes]
    task: asyncio.Task[dict[bytes, bytes]]
    num_waiting: int = 0

    def failed_for_its_starter(self, requested: frozenset[bytes]) -> bool:
        """Whether another caller, who needs the requested keys, may still succeed: the starter was late, was refused or
        has gone, or the key that failed may not be a requested one.
        """
        if self.task.cancelled():
            return True
        error = self.task.exception()
        return error is not None and (isinstance(error, STARTER_ERRORS) or not self.keys <= requested)


class SingleFlight:
    """Runs each computation in a separate task, so that it outlives its caller while others wait for it."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[Hashable, bytes], Flight] = {}

    async def run(self, keys: Sequence[bytes], compute: Compute, owner: Hashable = None) -> dict[bytes, bytes]:
        """The payload of each key, computed here in one call or awaited from another caller of the same owner.

        Raises what `compute` raises. What another caller's `compute` raises is raised too, unless the reason may lie
        with that caller: then this call computes what it still needs.
        """
        requested = frozenset(keys)
        result: dict[bytes, bytes] = {}
        started: set[Flight] = set()
        joined: set[Flight] = set()
        try:
            while missing := [key for key in dict.fromkeys(keys) if key not in result]:
                most = max(SMALL, MAX_TIMES_LARGER * len(missing))
                flying = {key: self._by_key[owner, key] for key in missing if (owner, key) in self._by_key}
                near = {key for key, flight in flying.items() if flight in joined or len(flight.keys) <= most}
                if unclaimed := [key for key in missing if key not in near]:
                    started.add(self._start(owner, unclaimed, compute))
                flights = {self._by_key[owner, key] for key in missing}
                for flight in flights - joined:
                    flight.num_waiting += 1
                joined |= flights
                await asyncio.wait([flight.task for flight in flights], return_when=asyncio.FIRST_EXCEPTION)
                for flight in flights:
                    if flight.task.done() and (flight in started or not flight.failed_for_its_starter(requested)):
                        payloads = flight.task.result()
                        result |= {key: payloads[key] for key in missing if key in payloads}
            return result
        finally:
            for flight in joined:
                self._leave(flight)

    def _start(self, owner: Hashable, keys: list[bytes], compute: Compute) -> Flight:
        flight = Flight(owner, frozenset(keys), asyncio.create_task(compute(keys)))
        flight.task.add_done_callback(lambda _: self._land(flight))
        self._by_key |= dict.fromkeys(((owner, key) for key in keys), flight)
        return flight

    def _land(self, flight: Flight) -> None:
        self._release(flight)
        if not flight.task.cancelled():
            flight.task.exception()  # retrieved even if nobody waits, or asyncio would log it as never retrieved

    def _leave(self, flight: Flight) -> None:
        flight.num_waiting -= 1
        if flight.num_waiting == 0 and not flight.task.done():
            flight.task.cancel()
            self._release(flight)

    def _release(self, flight: Flight) -> None:
        """Forgets the computation, so that later calls compute its keys anew."""
        for key in flight.keys:
            if self._by_key.get((flight.owner, key)) is flight:
                del self._by_key[flight.owner, key]
