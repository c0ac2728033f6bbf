"""While a polite client's request is between two tasks, no batch of a greedy client begins."""

import math
import threading
import time
from contextlib import ExitStack

import pytest
from support.tasks import HANG_S, LANE, Clock, task_of

from bandrank.engine import task_queue
from bandrank.engine.client_queues import AHEAD
from bandrank.engine.clients import Client
from bandrank.engine.task_queue import FINER, PAUSE_PART, PAUSE_S, TaskQueue
from bandrank.engine.tasks import TaskSlice
from bandrank.engine.tickets import Ticket

BATCH = 40
POLITE, GREEDY = Client("polite"), Client("greedy")


@pytest.fixture
def queue() -> TaskQueue:
    """A queue in which the greedy client has much work waiting and has already been handed some."""
    queue = TaskQueue(max_waiting_rows=math.inf, max_wait_s=math.inf, clock=Clock(), max_batch_rows=BATCH)
    for _ in range(100):
        queue.put(task_of([1] * BATCH, client=GREEDY))
    for _ in range(AHEAD):
        queue.take_batch(BATCH)
    return queue


def test_the_thread_waits_for_the_next_task(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next task comes from the event loop; the thread waits for it briefly, whatever others put meanwhile."""
    first, second = task_of([1] * 3, client=POLITE), task_of([1] * 3, client=POLITE)
    second.ticket = first.ticket
    with queue.admitted(first.ticket, {LANE: 6}):
        queue.put(first)
        assert queue.take_batch(BATCH) == [TaskSlice(first, 0, 3)]
        monkeypatch.setattr(task_queue, "PAUSE_S", HANG_S)
        for moment, task in ((0.02, task_of([1] * BATCH, client=GREEDY)), (0.05, second)):
            threading.Timer(moment, queue.put, [task]).start()
        assert queue.take_batch(BATCH) == [TaskSlice(second, 0, 3)]
    monkeypatch.setattr(task_queue, "PAUSE_S", 0.001)
    with queue.admitted(Ticket(POLITE, math.inf), {LANE: 6}):
        assert queue.take_batch(BATCH)[0].task.ticket.client is GREEDY


def test_the_thread_waits_for_no_request_that_has_ended(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_queue, "PAUSE_S", HANG_S)
    request, start = ExitStack(), time.monotonic()
    request.enter_context(queue.admitted(Ticket(POLITE, math.inf), {LANE: 6}))
    threading.Timer(0.05, request.close).start()

    assert queue.take_batch(BATCH)[0].task.ticket.client is GREEDY
    assert time.monotonic() - start < HANG_S


def test_the_thread_waits_longer_where_the_batch_would_be_long(queue: TaskQueue) -> None:
    """A batch may take seconds even if it holds a single candidate, and the request would have to wait for it."""
    queue.throughput.report(LANE.name, BATCH, HANG_S / PAUSE_PART * FINER)
    first, second = task_of([1] * 3, client=POLITE), task_of([1] * 3, client=POLITE)
    second.ticket = first.ticket
    with queue.admitted(first.ticket, {LANE: 6}):
        queue.put(first)
        assert queue.take_batch(BATCH) == [TaskSlice(first, 0, 3)]
        threading.Timer(10 * PAUSE_S, queue.put, [second]).start()
        assert queue.take_batch(BATCH) == [TaskSlice(second, 0, 3)]


def test_no_batch_is_taken_ahead_of_the_next_task(queue: TaskQueue) -> None:
    """A batch taken while the first task is being scored would delay the second task."""
    first, second = task_of([1] * 3, client=POLITE), task_of([1] * 3, client=POLITE)
    second.ticket = first.ticket
    with queue.admitted(first.ticket, {LANE: 6}):
        queue.put(first)
        assert queue.take_batch(BATCH) == [TaskSlice(first, 0, 3)]
        assert queue.take_batch(BATCH, wait=False) == []
        queue.put(second)
        assert queue.take_batch(BATCH, wait=False) == [TaskSlice(second, 0, 3)]
        assert queue.take_batch(BATCH, wait=False)[0].task.ticket.client is GREEDY


def test_the_thread_does_not_wait_behind_the_last_task(queue: TaskQueue) -> None:
    """What was expected beyond it was cached, or estimated too high."""
    last = task_of([1] * 3, client=POLITE)
    last.ticket.num_scorings = 1
    with queue.admitted(last.ticket, {LANE: 6}):
        queue.put(last)
        assert queue.take_batch(BATCH) == [TaskSlice(last, 0, 3)]
        assert queue.take_batch(BATCH, wait=False)[0].task.ticket.client is GREEDY
