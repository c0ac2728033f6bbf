"""Keeps the rounds of the event loop short: whatever comes at once, it soon looks at its sockets again."""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from bandrank.api.addresses import client_at
from bandrank.engine.clients import Client
from bandrank.engine.fair_queue import FairQueue

P = ParamSpec("P")
T = TypeVar("T")

QUANTUM_S = 0.005
BEGUN, NEW = 0.0, 1.0  # turns among the requests of a client


class Pace:
    """Bounds how long the event loop is kept from probes, and from everybody else, by much work that comes at once.

    A round of the loop is what it runs between two looks at its sockets. Work that would begin late in a round waits;
    of what waits, each round begins one piece: of the client whose pieces took least time, and of that client's in the
    order in which they came. Requests that are begun go before new ones of the client: they are done in several pieces,
    and would wait for all of those anew with each. A single piece may take long.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None  # the round, as far as it was seen
        self._waiting = FairQueue()
        self._served: Client | None = None  # whose piece the round began with

    async def turn(self, client: Client, *, new: bool = False) -> None:
        """Returns when work of the client may begin. new: whether it is the first of its request."""
        if self._waiting or self._round_s() > QUANTUM_S:
            await self._waiting.wait(client, NEW if new else BEGUN)

    async def run(self, client: Client, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`, which is called in the client's turn. Raises what it raises."""
        await self.turn(client)
        return work(*args, **kwargs)

    def _round_s(self) -> float:
        now = time.perf_counter()
        if self._began_s is None:
            self._began_s = now
            asyncio.get_running_loop().call_soon(self._end)  # the loop looks at its sockets before it calls this
        return now - self._began_s

    def _end(self) -> None:
        if self._served is not None:
            self._waiting.charge(self._served, self._round_s())
        self._began_s = None
        self._served = self._waiting.serve_next()
        if self._served is not None:
            self._round_s()  # which ends after that piece


class Paced:
    """Middleware: of many requests that arrive at once, each round of the loop begins a few. Probes begin at once.

    Whose key a request has is not known yet: it counts as one of its address until it is.
    """

    def __init__(self, app: ASGIApp, pace: Pace, probes: Collection[str]) -> None:
        self._app = app
        self._pace = pace
        self._probes = frozenset(probes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._probes:
            await self._pace.turn(client_at(scope.get("client")), new=True)
        await self._app(scope, receive, send)
