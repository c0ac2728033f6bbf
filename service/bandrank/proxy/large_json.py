"""Work on large JSON, beside the event loop."""

import math
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from bandrank.api.pace import Pace
from bandrank.engine.clients import Client
from bandrank.engine.fair_pool import FairPool

P = ParamSpec("P")
T = TypeVar("T")

# Which takes some milliseconds at most, whatever it holds. More would keep the event loop from everybody else: sixteen
# megabytes of numbers take half a second to read.
SMALL_BYTES = 32 << 10


class LargeJson:
    """Reads and writes what is small on the event loop, in its turn, and what is large in one thread.

    The thread works on one text at a time, so that no more memory is used than was counted before and for that one, and
    a small text passes large ones that wait. The interpreter's lock changes hands every few milliseconds.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._pool = FairPool(1, max_size=math.inf, name="json")  # what may wait is bounded by the memory that it holds

    async def run(self, client: Client, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`, which reads or writes `size` bytes. Raises what it raises."""
        if size <= SMALL_BYTES:
            return await self._pace.run(client, work, *args, **kwargs)
        with self._pool.admit(client, size) as turn:
            return await self._pool.run(client, turn, size, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Ends the thread when its work is done."""
        self._pool.close()
