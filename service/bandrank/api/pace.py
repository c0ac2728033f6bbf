"""Keeps the rounds of the event loop short: however much arrives at once, it soon looks at its sockets again."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from itertools import islice
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
    """Bounds how long a burst of work keeps the event loop from probes, and from everybody else.

    A round of the loop is what it runs between two looks at its sockets. Work that would begin late in a round waits,
    and each round begins one waiting piece: of the client whose pieces took the least time, the one that came first.
    Requests that have begun go before the client's new ones: they are done in several pieces, each of which would
    otherwise wait for all new ones again. A single piece may take long.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None  # when the round was first seen
        self._waiting = FairQueue()
        self._served: Client | None = None  # whose piece the round began with

    async def turn(self, client: Client, *, new: bool = False) -> None:
        """Returns when work of the client may begin. new: whether it is the first work of its request."""
        if self._waiting or self._round_s() > QUANTUM_S:
            await self._waiting.wait(client, NEW if new else BEGUN)

    async def run(self, client: Client, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `work` in the client's turn and returns its result. Raises what it raises."""
        await self.turn(client)
        return work(*args, **kwargs)

    async def listed(self, client: Client, items: Iterable[T], at_once: int) -> list[T]:
        """Lists items that take long to make, from the client's turn on; after every `at_once` others get theirs."""
        rest = iter(items)
        made: list[T] = []
        while some := list(islice(rest, at_once)):
            made += some
            if len(some) == at_once:
                await self.turn(client)
        return made

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
    """Middleware: each round of the loop begins only a few of the requests that arrive together; probes begin at once.

    The key of a request is not known yet, so until it is, the request counts for its address.
    """

    def __init__(self, app: ASGIApp, pace: Pace, probes: Collection[str]) -> None:
        self._app = app
        self._pace = pace
        self._probes = frozenset(probes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._probes:
            await self._pace.turn(client_at(scope.get("client")), new=True)
        await self._app(scope, receive, send)
