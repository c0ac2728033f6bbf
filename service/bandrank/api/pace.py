"""Long pieces of work on the event loop: after a few, it looks at its sockets before the next."""

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

QUANTUM_S = 0.005


class Pace:
    """Bounds how long the event loop is kept from probes, and from everybody else, by many pieces of work at once.

    A single piece may take longer than the quantum; the next then waits until the loop has looked at its sockets.
    """

    def __init__(self) -> None:
        self._spent_s = 0.0  # since then

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`, in the calling thread. Raises what it raises."""
        while self._spent_s > QUANTUM_S:  # noqa: ASYNC110 - the event is that the loop has gone round
            await asyncio.sleep(0)
        if not self._spent_s:
            asyncio.get_running_loop().call_soon(self._forget)  # the loop looks at its sockets before it calls this
        start = time.perf_counter()
        try:
            return work(*args, **kwargs)
        finally:
            self._spent_s += time.perf_counter() - start

    def _forget(self) -> None:
        self._spent_s = 0.0
