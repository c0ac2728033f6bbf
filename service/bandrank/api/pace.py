"""Keeps the rounds of the event loop short: whatever comes at once, it soon looks at its sockets again."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

P = ParamSpec("P")
T = TypeVar("T")

QUANTUM_S = 0.005


class Pace:
    """Bounds how long the event loop is kept from probes, and from everybody else, by much work that comes at once.

    A round of the loop is what it runs between two looks at its sockets. Work that would begin late in a round waits;
    of what waits, each round begins one piece, in the order in which they came. Requests that are begun go before new
    ones: they are done in several pieces, and would wait for all of those anew with each. A single piece may take long.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None  # the round, as far as it was seen
        self._begun: deque[asyncio.Future[None]] = deque()
        self._new: deque[asyncio.Future[None]] = deque()

    async def turn(self, *, new: bool = False) -> None:
        """Returns when work may begin. new: whether it is the first of its request."""
        if self._begun or (new and self._new) or self._round_s() > QUANTUM_S:
            turn = asyncio.get_running_loop().create_future()
            (self._new if new else self._begun).append(turn)
            await turn

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`, which is called in its turn. Raises what it raises."""
        await self.turn()
        return work(*args, **kwargs)

    def _round_s(self) -> float:
        now = time.perf_counter()
        if self._began_s is None:
            self._began_s = now
            asyncio.get_running_loop().call_soon(self._end)  # the loop looks at its sockets before it calls this
        return now - self._began_s

    def _end(self) -> None:
        self._began_s = None
        while waiting := self._begun or self._new:
            turn = waiting.popleft()
            if not turn.done():  # else its request was cancelled
                turn.set_result(None)
                self._round_s()  # which ends after that piece
                break


class Paced:
    """Middleware: of many requests that arrive at once, each round of the loop begins a few. Probes begin at once."""

    def __init__(self, app: ASGIApp, pace: Pace, probes: Collection[str]) -> None:
        self._app = app
        self._pace = pace
        self._probes = frozenset(probes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._probes:
            await self._pace.turn(new=True)
        await self._app(scope, receive, send)
