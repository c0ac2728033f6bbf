"""Hands tasks from the event loop to the scoring thread and awaits their results."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bandrank.engine.task_queue import TaskQueue, deadline_exceeded
from bandrank.engine.tasks import Candidates, Result, Task
from bandrank.errors import BandrankError


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
