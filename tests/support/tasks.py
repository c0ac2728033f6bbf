"""Score tasks of given sizes, a clock that the test moves, and waiting for what the event loop brings."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bandrank.engine.clients import Client
from bandrank.engine.tasks import AnySlice, AnyTask, Lane, Outcomes, Task
from bandrank.engine.tickets import Ticket

HANG_S = 120.0  # only a bug takes that long, even where many tests share a processor


@dataclass
class Clock:
    """A clock that the test sets."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, eq=False)
class NamedLane:
    """A lane for tests that run no batch."""

    name: str
    row_cost: float = 1.0
    overlaps = False

    def begin(self, slices: Sequence[AnySlice]) -> Outcomes[Any]:
        raise NotImplementedError


LANE = NamedLane("lane")
CLIENT = Client("client")


def task_of(
    rows: Sequence[float],
    *,
    deadline: float = math.inf,
    lane: Lane[Any, Any] = LANE,
    client: Client = CLIENT,
    priority: int = 0,
) -> AnyTask:
    """The task of a request whose candidates cost these rows; their token ids are their indices in the task."""
    return Task(
        lane=lane,
        query=np.zeros(1, np.int32),
        candidates=[[index] for index in range(len(rows))],
        rows=rows,
        arrived=0.0,
        ticket=Ticket(client, deadline, priority),
    )


async def until(holds: Callable[[], bool]) -> None:
    """Runs the event loop until `holds` is true. Raises TimeoutError if it never is.

    It pauses after each look, because a loop that is always busy would keep other threads, such as the scoring thread,
    from the interpreter.
    """
    async with asyncio.timeout(HANG_S):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0.001)


def wait_until(holds: Callable[[], Any], *, within_s: float = HANG_S) -> None:
    """Waits until `holds` is true, without an event loop. Raises TimeoutError if it is not in time."""
    ends = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(0.01)
