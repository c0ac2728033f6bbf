"""Score tasks of given sizes, a clock that the test moves, and waiting for what the event loop brings."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from bandrank.engine.tasks import ScoreTask

HANG_S = 60.0  # only a bug takes that long


@dataclass
class Clock:
    """Says `now`, which the test sets."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def task_of(rows: list[int], *, deadline: float = math.inf) -> ScoreTask:
    """A task whose candidates cost these rows; their token ids are their places in the task."""
    return ScoreTask(
        query=[0], candidates=[[place] for place in range(len(rows))], rows=rows, arrived=0.0, deadline=deadline
    )


async def until(holds: Callable[[], bool]) -> None:
    """Gives the event loop turns until `holds` does. Raises TimeoutError if it never does."""
    async with asyncio.timeout(HANG_S):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0)
