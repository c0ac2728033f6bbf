"""One computation per key at a time, however many ask for it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bandrank.errors import DeadlineExceeded

Compute = Callable[[list[bytes]], Awaitable[dict[bytes, bytes]]]

# Reasons to fail that lie with whoever started a computation, and not with its keys.
STARTERS_OWN = (DeadlineExceeded, TimeoutError)


@dataclass(eq=False)
class Flight:
    """A computation under way.  num_waiting: callers that need one of its keys, the one that started it included."""

    keys: frozenset[bytes]
    task: asyncio.Task[dict[bytes, bytes]]
    num_waiting: int = 0

    def failed_for_its_starter(self, wanted: frozenset[bytes]) -> bool:
        """Whether somebody else, who wants `wanted`, may fare better: the starter was late or gone, or what failed may
        be a key that is not wanted.
        """
        if self.task.cancelled():
            return True
        error = self.task.exception()
        return error is not None and (isinstance(error, STARTERS_OWN) or not self.keys <= wanted)


class SingleFlight:
    """Runs computations in tasks of their own, so that one outlives its caller while others wait for it."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Flight] = {}

    async def run(self, keys: Sequence[bytes], compute: Compute) -> dict[bytes, bytes]:
        """The payload of each key: computed here in one call, or awaited where it is being computed already.

        Raises what `compute` raises. What another caller's `compute` raises is raised too, unless the reason may lie
        with that caller: then this one computes what it still needs.
        """
        wanted = frozenset(keys)
        found: dict[bytes, bytes] = {}
        own: set[Flight] = set()
        joined: set[Flight] = set()
        try:
            while missing := [key for key in dict.fromkeys(keys) if key not in found]:
                if unclaimed := [key for key in missing if key not in self._by_key]:
                    own.add(self._start(unclaimed, compute))
                flights = {self._by_key[key] for key in missing}
                for flight in flights - joined:
                    flight.num_waiting += 1
                joined |= flights
                await asyncio.wait([flight.task for flight in flights], return_when=asyncio.FIRST_EXCEPTION)
                for flight in flights:
                    if flight.task.done() and (flight in own or not flight.failed_for_its_starter(wanted)):
                        payloads = flight.task.result()
                        found |= {key: payloads[key] for key in missing if key in payloads}
            return found
        finally:
            for flight in joined:
                self._leave(flight)

    def _start(self, keys: list[bytes], compute: Compute) -> Flight:
        flight = Flight(frozenset(keys), asyncio.create_task(_call(compute, keys)))
        flight.task.add_done_callback(lambda _: self._land(flight))
        self._by_key |= dict.fromkeys(keys, flight)
        return flight

    def _land(self, flight: Flight) -> None:
        self._release(flight)
        if not flight.task.cancelled():
            flight.task.exception()  # seen, even if nobody waits any more: asyncio would log it as forgotten

    def _leave(self, flight: Flight) -> None:
        flight.num_waiting -= 1
        if flight.num_waiting == 0 and not flight.task.done():
            flight.task.cancel()
            self._release(flight)

    def _release(self, flight: Flight) -> None:
        """From now on its keys are computed anew."""
        for key in flight.keys:
            if self._by_key.get(key) is flight:
                del self._by_key[key]


async def _call(compute: Compute, keys: list[bytes]) -> dict[bytes, bytes]:
    return await compute(keys)
