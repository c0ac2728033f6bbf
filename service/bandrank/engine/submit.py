"""Hands tasks from the event loop to the scoring thread and awaits their results."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate

from bandrank.engine.task_queue import TaskQueue, deadline_exceeded
from bandrank.engine.tasks import AnyLane, Candidates, Result, Task
from bandrank.engine.throughput import BELIEVED_S
from bandrank.engine.tickets import Ticket
from bandrank.errors import BandrankError

CAUTION = 1.1  # predicted times are multiplied by this before they are compared with a budget


async def submit(queue: TaskQueue, task: Task[Candidates, Result], *, answer_by: float = math.inf) -> list[Result]:
    """The results of a task, or at `answer_by` those of the leading candidates that are done by then.

    Cancelling the call frees the task's room in the queue.
    answer_by: monotonic seconds; a task that has one may be refused, because scores of an earlier stage can stand in.
    Raises what `TaskQueue.put` raises, DeadlineExceeded, and what the lane raises.
    """
    queue.put(task, may_be_refused=not math.isinf(answer_by))
    future = asyncio.wrap_future(task.future)
    future.add_done_callback(_seen)
    reason = "cancelled"
    try:
        finished, _ = await asyncio.wait([future], timeout=min(task.deadline, answer_by) - queue.clock())
        if finished:
            if isinstance(error := future.exception(), BandrankError):
                raise error.saying(str(error)) from error  # a new one: the task would hold the traceback of its own
            return future.result()
        if answer_by <= task.deadline:
            reason = "cut"
            return list(task.done_so_far)
        reason = "expired"
        raise deadline_exceeded()
    finally:
        if not task.future.done():
            late = reason == "cancelled" and queue.clock() >= task.deadline  # a timeout around the call came first
            queue.discard(task, "expired" if late else reason)


def count_fitting(queue: TaskQueue, lane: AnyLane, rows: Sequence[float], ticket: Ticket, answer_by: float) -> int:
    """How many leading candidates a lane will be done with in time, after the work ahead. rows: of each candidate.

    At least one if nothing has shown the speed for a while, and nothing else may.
    """
    if math.isinf(answer_by) or not rows:
        return len(rows)
    time_left = answer_by - queue.clock() - queue.wait_s(ticket, sum(rows) * lane.row_cost)
    seconds = [CAUTION * queue.throughput.seconds(lane.name, sofar) for sofar in accumulate(rows)]
    fitting = [number for number, each in enumerate(seconds, start=1) if each <= time_left]
    return max(fitting, default=int(queue.throughput.unconfirmed_s(lane.name, rows[0]) > BELIEVED_S))


def _seen(future: asyncio.Future[list[Result]]) -> None:
    """Retrieves a future's error, which asyncio would log if nobody waits for it any more."""
    if not future.cancelled():
        future.exception()


@asynccontextmanager
async def timeout(seconds: float) -> AsyncIterator[None]:
    """Like asyncio.timeout, but raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise deadline_exceeded() from None
