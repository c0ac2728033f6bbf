"""Background work in the task queue: requests are served as if there were none."""

import asyncio
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import queues
from support.tasks import CLIENT, HANG_S, LANE, Clock, NamedLane, task_of

from bandrank.engine.clients import SHADOW, Client
from bandrank.engine.fair_pool import FairPool
from bandrank.engine.task_queue import BACKGROUND_FINER, TaskQueue
from bandrank.engine.tasks import AnySlice
from bandrank.engine.tickets import Ticket
from bandrank.errors import InputTooLarge, NotReady, ScoringFailed

BATCH = 160
CLIENTS = {name: Client(name) for name in "abc"}
COSTLY = NamedLane("costly", row_cost=100.0)
# Requests that arrive between two batches: the client's name, and the rows of each candidate.
ARRIVALS = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 50), min_size=1, max_size=9)), max_size=3),
    max_size=30,
)


def queue_of(**more: float) -> TaskQueue:
    """A queue in which a row takes a second, and a costly one a hundred."""
    queue = queues.queue_of(max_batch_rows=BATCH, **more)
    queue.throughput.report(COSTLY.name, 1000, 100_000.0)
    return queue


def shape(batch: list[AnySlice]) -> list[tuple[str, list[float], int, int]]:
    return [(part.task.ticket.client.name, list(part.task.rows), part.start, part.stop) for part in batch]


def batches(arrivals: list[list[tuple[str, list[int]]]], background: list[int]) -> list[list[AnySlice]]:
    """The batches until the queue is empty. background: rows of candidates that wait from the start."""
    queue = queue_of()
    for rows in background:
        queue.put(task_of([rows] * 3, client=SHADOW, lane=COSTLY))
    taken = []
    for requests in arrivals:
        for name, rows in requests:
            queue.put(task_of(rows, client=CLIENTS[name]))
        if queue.waiting_tasks:
            taken.append(queue.take_batch(BATCH))
    while batch := queue.take_batch(BATCH, wait=False):
        taken.append(batch)
    if background:
        assert queue.take_batch(BATCH)[0].task.ticket.client is SHADOW  # the background work waited all the time
    return taken


@given(arrivals=ARRIVALS, background=st.lists(st.integers(1, 100), min_size=1, max_size=5))
def test_requests_get_the_same_batches_beside_background_work(
    arrivals: list[list[tuple[str, list[int]]]], background: list[int]
) -> None:
    """Batches have the same order and slices, whichever clients the requests are from."""
    alone, beside = batches(arrivals, []), batches(arrivals, background)

    assert [shape(batch) for batch in beside] == [shape(batch) for batch in alone]


@given(rows=st.lists(st.integers(1, BATCH // BACKGROUND_FINER), min_size=1, max_size=50))
def test_a_request_waits_for_one_small_batch(rows: list[int]) -> None:
    """A request waits at most for the background batch that had begun when it came."""
    queue = queue_of()
    queue.put(task_of(rows, client=SHADOW))
    begun = queue.take_batch(BATCH)
    task = task_of([1])
    queue.put(task)

    assert sum(part.rows for part in begun) <= BATCH // BACKGROUND_FINER
    assert [part.task for part in queue.take_batch(BATCH)] == [task]


def test_a_request_that_is_admitted_goes_before() -> None:
    """Background work waits even if an admitted request has nothing queued, and begins once that request has ended."""
    queue = queue_of()
    queue.put(task_of([1], client=SHADOW))
    taken: list[list[AnySlice]] = []
    thread = threading.Thread(target=lambda: taken.append(queue.take_batch(BATCH)))
    with queue.admitted(Ticket(CLIENT, math.inf), {}):
        thread.start()
        thread.join(0.05)
        assert taken == []
    thread.join(HANG_S)

    assert taken[0][0].task.ticket.client is SHADOW


def test_nobody_is_told_to_wait_for_background_work() -> None:
    """Background work takes no room in the queue, adds to no waiting time, and is not counted as waiting."""
    queue = queue_of(max_waiting_rows=90, patience=0.5)
    queue.put(task_of([20] * 4, client=SHADOW, lane=COSTLY))
    ticket = Ticket(CLIENT, math.inf)

    assert (queue.waiting_rows, queue.waiting_tasks, queue.wait_s(ticket, 10.0)) == (0, 0, 0.0)
    for rows in (25, 20):  # half of the room
        task = task_of([1] * rows)
        task.ticket = ticket
        with queue.admitted(ticket, {LANE: rows}):
            queue.put(task)


def test_background_work_ends_with_the_queue() -> None:
    """Closing the queue fails background work at once, while the clients' tasks are still handed out."""
    queue, shadow, request = queue_of(), task_of([1], client=SHADOW), task_of([1])
    queue.put(shadow)
    queue.put(request)
    queue.close()

    assert isinstance(shadow.future.exception(timeout=0), NotReady)
    assert [part.task for part in queue.take_batch(BATCH)] == [request]
    assert queue.take_batch(BATCH) == []


def test_background_work_fails_with_a_thread_that_died() -> None:
    queue, shadow = queue_of(), task_of([1], client=SHADOW)
    queue.put(shadow)
    queue.close(ScoringFailed("it died"))

    assert str(shadow.future.exception(timeout=0)) == "it died"


def test_background_work_that_is_given_up_is_no_dropped_request() -> None:
    """Only the clients' own tasks count as dropped; whoever asked for background work counts it."""
    dropped: list[str] = []
    clock = Clock()
    queue = TaskQueue(max_waiting_rows=math.inf, max_wait_s=math.inf, clock=clock, on_drop=dropped.append)
    for client in (SHADOW, CLIENT):
        queue.put(task_of([1], client=client, deadline=5.0))
        queue.put(cancelled := task_of([1], client=client))
        queue.discard(cancelled, "cancelled")
    clock.now = 6.0
    queue.put(task_of([1]))
    queue.take_batch(BATCH)

    assert dropped == ["cancelled", "expired"]


async def test_background_texts_are_tokenised_last() -> None:
    """Background texts do not take up room that requests may use, either."""
    pool = FairPool(1, max_size=100, name="test")
    order: list[str] = []

    async def tokenise(client: Client, size: int) -> None:
        with pool.admit(client, size) as turn:
            await pool.run(client, turn, size, lambda: order.append(client.name))

    await asyncio.gather(tokenise(CLIENT, 5), tokenise(SHADOW, 1), tokenise(CLIENT, 45))

    assert order == ["client", "client", "shadow"]
    with pool.admit(SHADOW, 12), pool.admit(CLIENT, 50):
        pass
    with pytest.raises(InputTooLarge), pool.admit(SHADOW, 13):
        pytest.fail("it was admitted")
