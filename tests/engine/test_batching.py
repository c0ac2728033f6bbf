"""Which tasks the queue admits and hands out: in order of turn, without starvation, and within each bound."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tasks import CLIENT, LANE, Clock, NamedLane, task_of

from bandrank.engine.clients import Client
from bandrank.engine.task_queue import TaskQueue
from bandrank.engine.tasks import Task, TaskSlice
from bandrank.engine.tickets import Ticket
from bandrank.errors import DeadlineExceeded, Overloaded, ScoringFailed


def open_queue(
    *,
    max_waiting_rows: int = 10**9,
    max_wait_s: float = math.inf,
    patience: float = math.inf,
    clock: Callable[[], float] = Clock(),  # noqa: B008  # a clock that stands still
    on_drop: Callable[[str], None] = lambda _: None,
) -> TaskQueue:
    """A queue that refuses nothing unless told to."""
    return TaskQueue(
        max_waiting_rows=max_waiting_rows, max_wait_s=max_wait_s, patience=patience, clock=clock, on_drop=on_drop
    )


@given(
    large=st.integers(1, 400),
    small=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    budget=st.integers(1, 60),
    most_waiting=st.integers(1, 500),
)
def test_a_large_task_does_not_starve(large: int, small: list[int], budget: int, most_waiting: int) -> None:
    """Against an endless stream of small tasks that keeps the queue full, a task of R rows is passed only by those that
    arrive while the queue hands out R rows. With at most W rows waiting it is done within R + W rows and the batch in
    which it ends.
    """
    queue = open_queue()
    victim = task_of([1] * large)
    queue.put(victim)
    sizes = cycle(small)
    handed_out = 0
    late: set[Task] = set()
    while victim.num_taken < large:
        while queue.waiting_rows < most_waiting:
            attacker = task_of([1] * next(sizes))
            queue.put(attacker)
            if handed_out >= large:
                late.add(attacker)
        batch = queue.take_batch(budget)
        handed_out += sum(part.rows for part in batch)
        assert victim.num_taken == large or not late & {part.task for part in batch}

    assert handed_out <= large + most_waiting + max(small) + budget


def test_a_finished_task_is_not_counted_as_dropped() -> None:
    """Discarding the task comes too late: its result stays."""
    drops: list[str] = []
    queue = open_queue(on_drop=drops.append)
    task = task_of([5])
    queue.put(task)
    queue.take_batch(5)
    task.add_results([1.5])
    queue.discard(task, "expired")

    assert (task.future.result(timeout=0), drops) == ([1.5], [])


def test_an_expired_task_is_answered_when_tasks_are_taken() -> None:
    clock = Clock()
    drops: list[str] = []
    queue = open_queue(clock=clock, on_drop=drops.append)
    late, in_time = task_of([5], deadline=1.0), task_of([50], deadline=1.5)
    queue.put(late)
    queue.put(in_time)
    clock.now = 1.0

    assert queue.take_batch(100) == [TaskSlice(in_time, 0, 1)]
    assert isinstance(late.future.exception(timeout=0), DeadlineExceeded)
    assert (queue.waiting_rows, drops) == (0, ["expired"])


def test_the_time_of_the_first_batch_is_kept() -> None:
    clock = Clock()
    queue = open_queue(clock=clock)
    task = task_of([5, 5])
    queue.put(task)
    for clock.now in (2.0, 3.0):
        queue.take_batch(5)

    assert task.first_taken == 2.0


def test_a_queue_is_bounded_in_rows() -> None:
    queue = open_queue(max_waiting_rows=20)
    queue.throughput.report(LANE.name, 100, 2.0)
    queue.put(task_of([6]))
    with pytest.raises(Overloaded, match="try again in 1 s") as refused:
        queue.put(task_of([5]))
    queue.put(task_of([4]))

    assert refused.value.retry_after_s == 1 / 50
    assert (queue.waiting_rows, queue.waiting_tasks) == (10, 2)


def test_a_queue_is_bounded_in_seconds() -> None:
    queue = open_queue(max_wait_s=2.0)
    queue.throughput.report(LANE.name, 100, 1.0)
    for _ in range(2):
        queue.put(task_of([100]))
    with pytest.raises(Overloaded, match="try again in 1 s") as refused:
        queue.put(task_of([100]))

    assert refused.value.retry_after_s == 1.0


def test_a_task_is_judged_by_the_work_whose_turn_comes_before() -> None:
    """A small task is admitted however much work has a later turn."""
    queue = open_queue(max_wait_s=2.0)
    queue.throughput.report(LANE.name, 100, 1.0)
    for _ in range(2):
        queue.put(task_of([100]))
    small = task_of([1])
    queue.put(small)

    assert queue.take_batch(1) == [TaskSlice(small, 0, 1)]


def test_a_task_is_judged_by_its_own_deadline() -> None:
    queue = open_queue(max_wait_s=60.0)
    queue.throughput.report(LANE.name, 100, 1.0)
    queue.put(task_of([100]))
    with pytest.raises(Overloaded):
        queue.put(task_of([100], deadline=1.5))
    queue.put(task_of([100], deadline=2.5))


def test_a_time_to_come_back_is_that_of_others_work() -> None:
    """Waiting does not shorten the request's own work, which therefore does not count."""
    queue = open_queue(max_wait_s=60.0)
    queue.throughput.report(LANE.name, 100, 1.0)
    queue.put(task_of([10]))
    for own_s in (40, 55):
        with pytest.raises(Overloaded) as refused, queue.admitted(Ticket(CLIENT, math.inf), {LANE: 100 * own_s}):
            pytest.fail("it was admitted")
        assert refused.value.retry_after_s == pytest.approx(0.1)


def test_many_tiny_batches_make_no_large_request_too_large() -> None:
    """Tiny batches say nothing about the speed of large ones, whether or not a large one has been timed."""
    for large in (True, False):
        queue = open_queue(max_wait_s=60.0)
        if large:
            queue.throughput.report(LANE.name, 4096, 1.0)
        for _ in range(300):
            queue.throughput.report(LANE.name, 5, 0.05)
        queue.put(task_of([100_000]))


def test_small_requests_that_come_together_are_expected_to_share_batches() -> None:
    """Each request counts for the time of its rows in a shared batch, not of a batch of its own."""
    queue = open_queue(patience=4.0)
    queue.throughput.report(LANE.name, 4096, 0.4)
    for _ in range(20):
        queue.throughput.report(LANE.name, 20, 0.05)

    with ExitStack() as all_at_once:
        for number in range(100):
            all_at_once.enter_context(queue.admitted(Ticket(CLIENT, math.inf), {LANE: 20}))
            queue.put(task_of([20], client=Client(f"{number}")))


def test_a_full_batch_is_one_of_the_lane_with_most_of_the_work() -> None:
    """A full batch of the query's few slow rows would be far longer."""
    queue, slow = open_queue(patience=4.0), NamedLane("slow")
    queue.throughput.report(LANE.name, 4096, 0.4)
    queue.throughput.report(slow.name, 20, 0.05)
    for _ in range(17):
        queue.put(task_of([1000]))

    with pytest.raises(Overloaded), queue.admitted(Ticket(CLIENT, math.inf), {slow: 20, LANE: 1000}):
        pytest.fail("it was admitted")


def test_a_batch_counts_as_waiting_time_until_it_should_have_ended() -> None:
    """A request has to wait for what is being computed, too; nobody knows for how long once its time is over."""
    queue = open_queue(patience=1.0)
    queue.throughput.report(LANE.name, 4096, 4096.0)
    queue.put(task_of([1] * 4096))
    queue.take_batch(4096)
    queue.put(task_of([1]))
    with pytest.raises(Overloaded):
        queue.put(task_of([1]))
    queue.clock = Clock(2.0)
    queue.put(task_of([1]))


def test_two_batches_at_most_count_as_being_computed() -> None:
    """A batch begins before the one ahead of it has ended, but not before the one ahead of that."""
    queue = open_queue(patience=2.0)
    queue.throughput.report(LANE.name, 4096, 4096.0)
    for _ in range(4):
        queue.put(task_of([1] * 4096))
        queue.take_batch(4096, wait=False)
    queue.put(task_of([1]))
    with pytest.raises(Overloaded):
        queue.put(task_of([1]))


def test_a_batch_that_was_faster_than_expected_is_not_waited_for() -> None:
    """The first batch, a small one, met a pause. At its speed the next one would take 3.2 s, until it shows its own.
    When another request arrives, the worker has reported that, but may not have come back for more work.
    """
    queue = open_queue(patience=4.0)
    queue.throughput.report(LANE.name, 32, 0.1)
    queue.put(task_of([32] * 60))
    queue.take_batch(4096)
    queue.throughput.report(LANE.name, 32 * 60, 0.05)
    queue.put(task_of([32]))

    assert queue.wait_s(Ticket(CLIENT, math.inf), 0.0) == pytest.approx(0.05)


def test_before_the_first_batch_is_timed_nothing_is_too_slow() -> None:
    """Without a measured speed only the bound in rows holds."""
    queue = open_queue(max_wait_s=1e-9, max_waiting_rows=20)
    queue.put(task_of([9]))
    queue.put(task_of([1]))

    with pytest.raises(Overloaded) as refused:
        queue.put(task_of([1]))
    assert refused.value.retry_after_s == 0.0


def test_the_wait_is_that_of_every_lane() -> None:
    queue = open_queue(max_wait_s=1.0)
    other = NamedLane("other")
    queue.throughput.report(LANE.name, 100, 1.0)
    queue.throughput.report(other.name, 10, 1.0)
    queue.put(task_of([51]))
    queue.put(task_of([5], lane=other))

    assert queue.wait_s(task_of([60]).ticket, 60) == pytest.approx(0.51 + 0.5, rel=1e-12)
    with pytest.raises(Overloaded):
        queue.put(task_of([60]))


def test_fractions_of_rows_leave_no_rest() -> None:
    queue = open_queue()
    for _ in range(10):
        queue.put(task_of([0.1] * 7))
    while queue.waiting_tasks:
        queue.take_batch(1)

    assert queue.waiting_rows == 0


def test_a_refused_task_leaves_no_trace() -> None:
    queue = open_queue(max_waiting_rows=20)
    queue.put(task_of([10]))
    refused = task_of([1])
    with pytest.raises(Overloaded):
        queue.put(refused)

    assert (queue.waiting_rows, queue.waiting_tasks) == (10, 1)
    queue.take_batch(10)
    queue.put(refused)
    assert queue.take_batch(10) == [TaskSlice(refused, 0, 1)]


def test_a_queue_closed_with_a_refusal_fails_queued_and_later_tasks() -> None:
    queue = open_queue()
    tasks = [task_of([3, 3]) for _ in range(3)]
    for task in tasks:
        queue.put(task)
    queue.take_batch(3)
    queue.close(ScoringFailed("broken"))

    assert [repr(task.future.exception(timeout=0)) for task in tasks] == ["ScoringFailed('broken')"] * 3
    with pytest.raises(ScoringFailed, match="broken"):
        queue.put(task_of([1]))
    assert queue.take_batch(3) == []
    assert (queue.waiting_rows, queue.waiting_tasks) == (0, 0)
