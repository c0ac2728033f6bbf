"""Runs a scoring thread by itself, on a queue that refuses nothing."""

from collections.abc import Callable

import torch
from support.tasks import Clock

from bandrank.engine.task_queue import TaskQueue
from bandrank.engine.tasks import Task
from bandrank.engine.worker import CPU, ScoringWorker
from bandrank.metrics import Metrics


class Dies(BaseException):
    """An error that handlers of ordinary errors do not catch."""


def open_queue(*tasks: Task, clock: Callable[[], float] | None = None) -> TaskQueue:
    """A queue that refuses nothing, with these tasks in order; its clock stands still if none is given."""
    queue = TaskQueue(max_waiting_rows=10**9, max_wait_s=float("inf"), clock=clock or Clock())
    for task in tasks:
        queue.put(task)
    return queue


def work_off(
    queue: TaskQueue,
    *,
    max_batch_rows: int = 4096,
    device: torch.device = CPU,
    on_death: Callable[[], None] = lambda: None,
) -> Metrics:
    """Scores the queued tasks in a thread, and returns when the thread has ended."""
    metrics = Metrics()
    worker = ScoringWorker(queue, max_batch_rows=max_batch_rows, metrics=metrics, device=device, on_death=on_death)
    queue.close()
    worker.start()
    worker.join()
    assert not worker.alive
    return metrics
