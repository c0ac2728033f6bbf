"""A task queue in which a row takes a second, and two of its clients."""

import math

from support.tasks import LANE, Clock

from bandrank.engine.clients import Client
from bandrank.engine.task_queue import TaskQueue

BATCH = 40
POLITE, GREEDY = Client("polite"), Client("greedy")


def queue_of(
    *,
    patience: float = math.inf,
    max_waiting_rows: float = math.inf,
    max_wait_s: float = math.inf,
    max_batch_rows: int = BATCH,
) -> TaskQueue:
    """A queue in which a row takes a second."""
    queue = TaskQueue(
        max_waiting_rows=max_waiting_rows,
        max_wait_s=max_wait_s,
        clock=Clock(),
        max_batch_rows=max_batch_rows,
        patience=patience,
    )
    queue.throughput.report(LANE.name, 1000, 1000.0)
    return queue
