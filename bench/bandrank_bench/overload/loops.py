"""Open and closed loops: requests are sent at fixed times, or as soon as the last answer has come."""

import asyncio
import gc
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bandrank_bench.overload.connections import HOST, Connections
from bandrank_bench.overload.outcomes import Exchange, Outcome, judge
from bandrank_bench.overload.processors import Busy
from bandrank_bench.overload.requests import Request
from bandrank_bench.service import Service

PATIENCE_S = 10.0  # beyond a request's limit, before it counts as lost
HEAD_START_S = 0.1  # for making the tasks before the first request
PAUSE_S = 0.05  # of a refused sender in a closed loop, which would otherwise just spin


@dataclass(frozen=True)
class Window:
    """The part of a run that counts for rates and times, in seconds from its start; what precedes it is a warm-up."""

    from_s: float
    to_s: float

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s

    def holds(self, moment_s: float) -> bool:
        """Whether a moment is in the window."""
        return self.from_s <= moment_s < self.to_s


@dataclass(frozen=True)
class Sender:
    """A client in an open loop: each request is sent at its own time, in seconds from the start.

    address: on the loopback interface, distinguishes it from other clients.
    """

    requests: Sequence[Request]
    times: Sequence[float]
    address: str = HOST


def poisson_arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """The times of a Poisson process of `rate` per second. Equal seeds give equal times, scaled by the rate."""
    rng = random.Random(seed)
    times: list[float] = []
    moment = rng.expovariate(1.0) / rate
    while moment < seconds:
        times.append(moment)
        moment += rng.expovariate(1.0) / rate
    return times


def steady_arrivals(rate: float, seconds: float) -> list[float]:
    """`rate` times per second at equal intervals, like load generators with a constant rate."""
    return [(number + 0.5) / rate for number in range(round(rate * seconds))]


async def open_loop(
    service: Service, senders: Sequence[Sender], window: Window, limit_s: float
) -> tuple[list[list[Outcome]], Busy]:
    """Returns the outcomes of each sender, in the order of its requests, and the processors in use during the window.

    A request is sent at its time, however late others are. Ends when the last one is answered or given up.
    limit_s: seconds after which an answer is late.
    """
    gc.collect()
    gc.freeze()  # a garbage collection over all requests would delay some
    loop = asyncio.get_running_loop()
    start = loop.time() + HEAD_START_S

    async def send_all(sender: Sender, connections: Connections) -> list[Exchange]:
        tasks = []
        for request, due_s in zip(sender.requests, sender.times, strict=True):
            if (left_s := start + due_s - loop.time()) > 0:
                await asyncio.sleep(left_s)
            tasks.append(loop.create_task(_exchange(connections, request, start, due_s, limit_s)))
        return await asyncio.gather(*tasks)

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Connections(service.port, one.address, service.host)) for one in senders
        ]
        watching = loop.create_task(_watch(service.pid, start, window))
        exchanges = await asyncio.gather(*map(send_all, senders, clients))
        busy = await watching
    return [[judge(one, limit_s) for one in of_sender] for of_sender in exchanges], busy


async def closed_loop(
    service: Service, requests: Iterable[Request], window: Window, limit_s: float, *, connections: int
) -> tuple[list[Outcome], Busy]:
    """Returns the outcomes of clients, one per connection, each asking again as soon as it has an answer."""
    gc.collect()
    gc.freeze()
    loop = asyncio.get_running_loop()
    start = loop.time()
    shared: Iterator[Request] = iter(requests)
    exchanges: list[Exchange] = []

    async def ask(client: Connections) -> None:
        while (due_s := loop.time() - start) < window.to_s:
            one = await _exchange(client, next(shared), start, due_s, limit_s)
            exchanges.append(one)
            if one.response is None or one.response.status != 200:
                await asyncio.sleep(PAUSE_S)

    async with Connections(service.port, host=service.host) as client:
        watching = loop.create_task(_watch(service.pid, start, window))
        await asyncio.gather(*(ask(client) for _ in range(connections)))
        busy = await watching
    return [judge(one, limit_s) for one in exchanges], busy


async def _exchange(client: Connections, request: Request, start: float, due_s: float, limit_s: float) -> Exchange:
    loop = asyncio.get_running_loop()
    response = None
    try:
        async with asyncio.timeout_at(start + due_s + limit_s + PATIENCE_S):
            response = await client.post(request.message)
    except (OSError, EOFError):  # TimeoutError is an OSError
        pass
    sent_s = None if response is None else response.sent_s - start
    return Exchange(request, due_s, sent_s, loop.time() - start, response)


async def _watch(pid: int | None, start: float, window: Window) -> Busy:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(start + window.from_s - loop.time())
    before, before_s = Busy.read(pid), loop.time()
    await asyncio.sleep(start + window.to_s - loop.time())
    return Busy.read(pid).since(before, loop.time() - before_s)
