"""Requests of a later priority let other requests of their client go first, and do not affect other clients."""

import pytest
from support.queues import BATCH, queue_of
from support.tasks import CLIENT, LANE, task_of

from bandrank.engine.clients import Client
from bandrank.engine.tickets import Ticket
from bandrank.errors import Overloaded

OTHERS = Client("one"), Client("another")


def test_a_later_priority_lets_others_of_its_client_go_first() -> None:
    """Requests that arrive afterwards go first too, and among the late ones the lowest number comes first."""
    queue = queue_of()
    late = [task_of([1] * BATCH, priority=priority) for priority in (999, 0, 1)]
    early = [task_of([1] * BATCH) for _ in range(3)]
    for task in (*late, *early):
        queue.put(task)

    order = [queue.take_batch(BATCH)[0].task for _ in range(6)]
    assert order == [late[1], *early, late[2], late[0]]


@pytest.mark.parametrize("priority", [0, 1, 999])
def test_no_priority_starves(priority: int) -> None:
    """A request of a late priority waits at most for a fixed multiple of its own work, whatever arrives behind it."""
    queue = queue_of()
    late = task_of([1] * BATCH, priority=priority)
    queue.put(late)
    batches = 0
    while late.num_taken < BATCH:
        queue.put(task_of([1] * BATCH))
        queue.take_batch(BATCH)
        batches += 1

    assert batches == round(late.ticket.deference)


def test_a_later_priority_is_refused_sooner_and_by_its_own_client_alone() -> None:
    """All work that goes before the request is known on arrival, and it may wait for no more than others may."""
    queue = queue_of(patience=2.0)
    queue.put(task_of([1] * 3 * BATCH))
    queue.put(task_of([1] * BATCH))
    with pytest.raises(Overloaded):
        queue.put(task_of([1] * BATCH, priority=999))
    for client, priority in zip(OTHERS, (999, 0), strict=True):
        queue.put(task_of([1] * BATCH, client=client, priority=priority))

    assert queue.waiting_tasks == 4


def test_what_may_pass_an_admitted_request_leaves_it_its_time() -> None:
    """A late priority is refused where an early one would do, but not if nothing else waits."""
    queue = queue_of()
    with queue.admitted(Ticket(CLIENT, 8.0 * BATCH, priority=999), {LANE: BATCH}):
        pass
    queue.put(task_of([1] * (BATCH // 2)))
    with queue.admitted(Ticket(CLIENT, 8.0 * BATCH), {LANE: BATCH}):
        pass
    with pytest.raises(Overloaded), queue.admitted(Ticket(CLIENT, 8.0 * BATCH, priority=999), {LANE: BATCH}):
        pytest.fail("it was admitted")
