"""Keeps work on large JSON off the event loop."""

import math
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from bandrank.api.pace import Pace
from bandrank.engine.clients import Client
from bandrank.engine.fair_pool import FairPool

P = ParamSpec("P")
T = TypeVar("T")

# Takes a few milliseconds at most, whatever it holds. More would block the event loop for everybody: sixteen megabytes
# of numbers take half a second to read.
SMALL_BYTES = 32 << 10


class LargeJson:
    """Reads and writes small texts on the event loop, in their turn, and large ones in one thread.

    The thread works on one text at a time, so that no memory is used but what was counted before and for that text, and
    small texts overtake large ones that wait. The interpreter's lock changes hands every few milliseconds.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._pool = FairPool(1, max_size=math.inf, name="json")  # the memory that waiting texts hold bounds them

    async def run(self, client: Client, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`, which reads or writes `size` bytes. Raises what it raises."""
        if size <= SMALL_BYTES:
            return await self._pace.run(client, work, *args, **kwargs)
        with self._pool.admit(client, size) as turn:
            return await self._pool.run(client, turn, size, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Ends the thread when its work is done."""
        self._pool.close()
