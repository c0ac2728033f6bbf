"""Which requests the task queue admits behind others, and which it refuses."""

import math

import pytest
from support.queues import BATCH, GREEDY, POLITE, queue_of
from support.tasks import CLIENT, LANE, Clock, NamedLane, task_of

from bandrank.engine.client_queues import AHEAD
from bandrank.engine.task_queue import EXPECTED_PART, MAX_RETRY_AFTER_S
from bandrank.engine.tickets import Ticket
from bandrank.errors import InputTooLarge, Overloaded

FAST = NamedLane("fast")


def test_a_request_waits_for_a_multiple_of_its_own_work() -> None:
    """With a patience of 3, a request of 100 s waits for at most 300 s of work; a larger request may wait longer."""
    queue = queue_of(patience=3.0)
    for _ in range(4):
        queue.put(task_of([100]))
    with pytest.raises(Overloaded, match=rf"try again in {MAX_RETRY_AFTER_S:.0f} s") as refused:
        queue.put(task_of([110]))
    queue.put(task_of([140]))

    assert refused.value.retry_after_s == MAX_RETRY_AFTER_S


def test_a_request_that_is_likely_to_be_late_is_refused_when_it_comes() -> None:
    """Behind other work a request must be expected to end within half of its time, as later ones may pass it; with
    nothing ahead of it, it is always tried.
    """
    queue = queue_of(max_wait_s=100.0)
    fits = 100 * EXPECTED_PART - 20
    with queue.admitted(Ticket(CLIENT, math.inf), {LANE: 20}):
        with pytest.raises(Overloaded) as refused, queue.admitted(Ticket(CLIENT, math.inf), {LANE: fits + 10}):
            pass
        with pytest.raises(Overloaded), queue.admitted(Ticket(CLIENT, 90.0), {LANE: fits}):
            pass
        with queue.admitted(Ticket(CLIENT, math.inf), {LANE: fits}):
            pass
    with queue.admitted(Ticket(CLIENT, math.inf), {LANE: 90}):
        pass

    assert refused.value.retry_after_s == pytest.approx(10.0)


def test_however_small_a_request_is_it_waits_as_if_it_were_a_batch() -> None:
    """If patience counted the request's own work alone, the scoring thread would run out of work."""
    queue = queue_of(patience=1.0)
    for _ in range(BATCH + 1):
        queue.put(task_of([1]))
    with pytest.raises(Overloaded):
        queue.put(task_of([1]))


def test_on_a_fast_device_nobody_is_refused_for_a_fraction_of_a_second() -> None:
    """A full batch may take milliseconds, as on a GPU: a patience of 4 is 0.8 s nevertheless."""
    queue = queue_of(patience=4.0)
    queue.throughput.report(FAST.name, 1000, 1.0)
    for _ in range(1 + 800 // 100):
        queue.put(task_of([100], lane=FAST))
    with pytest.raises(Overloaded):
        queue.put(task_of([100], lane=FAST))

    assert queue.wait_s(Ticket(CLIENT, math.inf), 100) == pytest.approx(0.9)


def test_nobody_is_refused_for_a_batch_whose_time_is_unknown() -> None:
    """After the service has started, a small batch has taken 14 ms, most of it a fixed cost. If each row of a candidate
    with 183 times as many rows took as long, the one behind it would wait 2.6 s, of which it may wait 1.3.
    """
    queue = queue_of(patience=4.0, max_batch_rows=4096)
    queue.throughput.report(FAST.name, 177, 0.014)
    queue.put(task_of([32_515], lane=FAST, client=GREEDY))
    assert len(queue.take_batch(4096)) == 1
    queue.put(task_of([11], lane=FAST, client=POLITE))

    assert queue.take_batch(4096, wait=False)[0].task.ticket.client is POLITE


def test_a_greedy_client_does_not_use_up_the_patience_of_another() -> None:
    """Ahead of a request counts only what the greedy client is handed meanwhile, not all that it has queued."""
    queue = queue_of(patience=4.0, max_wait_s=100_000.0)
    while True:
        try:
            queue.put(task_of([10] * BATCH, client=GREEDY))
        except Overloaded:
            break
    for _ in range(3 * AHEAD):
        queue.take_batch(BATCH)

    task = task_of([10], client=POLITE)
    assert queue.wait_s(task.ticket, 10) == BATCH  # the one being computed
    queue.put(task)


def test_a_request_that_is_begun_is_not_refused() -> None:
    """Later tasks of the request are refused only if they would be late, or are put with `may_be_refused`."""
    queue = queue_of(patience=3.0)
    for _ in range(3):
        queue.put(task_of([2 * BATCH]))
    first = task_of([2 * BATCH])
    queue.put(first)
    later = task_of([1])
    later.ticket = first.ticket
    with pytest.raises(Overloaded):
        queue.put(later, may_be_refused=True)
    queue.put(later)

    assert queue.waiting_tasks == 5


def test_a_request_is_admitted_with_what_it_is_certain_to_need() -> None:
    """Expected rows count for later requests before any of them is queued, and are not counted twice once they are."""
    queue = queue_of(patience=0.7)
    first, second = Ticket(CLIENT, math.inf), Ticket(CLIENT, math.inf)
    with queue.admitted(first, {LANE: 3 * BATCH}):
        assert queue.wait_s(second, 3 * BATCH) == 3 * BATCH
        with pytest.raises(Overloaded), queue.admitted(second, {LANE: 3 * BATCH}):
            pytest.fail("it was admitted")
        task = task_of([1] * BATCH)
        task.ticket = first
        queue.put(task)
        assert queue.wait_s(second, 3 * BATCH) == 3 * BATCH
        queue.take_batch(BATCH)
        queue.clock = Clock(BATCH)  # the batch has ended
        assert queue.wait_s(second, 3 * BATCH) == 2 * BATCH
        with queue.admitted(second, {LANE: 3 * BATCH}):
            assert second.turn == 4 * BATCH


def test_an_estimate_refuses_only_what_is_plainly_too_large() -> None:
    """An estimate may be twice as large as what the request turns out to need."""
    queue = queue_of(max_wait_s=100.0)
    with queue.admitted(Ticket(CLIENT, math.inf), {LANE: 199}):
        pass
    with pytest.raises(InputTooLarge), queue.admitted(Ticket(CLIENT, math.inf), {LANE: 201}):
        pytest.fail("it was admitted")


def test_rows_that_wait_are_shared() -> None:
    """One client alone may hold half of the room in rows, which leaves some for another."""
    queue = queue_of(max_waiting_rows=90)
    for _ in range(4):
        queue.put(task_of([10], client=GREEDY))
    with pytest.raises(Overloaded):
        queue.put(task_of([10], client=GREEDY))
    queue.put(task_of([20], client=POLITE))
    with pytest.raises(Overloaded):
        queue.put(task_of([10], client=POLITE))
