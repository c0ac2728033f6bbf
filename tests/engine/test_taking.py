"""Which candidates of waiting tasks make a batch: none is lost, doubled or reordered, and the budget is kept."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from support.tasks import CLIENT, NamedLane, task_of

from bandrank.engine.client_queues import ClientQueue, take
from bandrank.engine.tasks import Task, TaskSlice

ROWS = st.lists(st.integers(1, 60), min_size=1, max_size=8)
BUDGETS = st.integers(1, 100)


def queue_of(tasks: Sequence[Task]) -> ClientQueue:
    queue = ClientQueue(CLIENT, 0.0)
    for turn, task in enumerate(tasks):
        queue.put(task, float(turn))
    return queue


@st.composite
def waiting_tasks(draw: st.DrawFn) -> list[Task]:
    """Draws tasks some of whose candidates, but not all, have been taken before."""
    tasks = [task_of(rows) for rows in draw(st.lists(ROWS, min_size=1, max_size=8))]
    for task in tasks:
        task.num_taken = draw(st.integers(0, len(task.rows) - 1))
    return tasks


@given(waiting_tasks(), BUDGETS)
def test_a_batch_continues_its_tasks_in_their_order(waiting: list[Task], budget: int) -> None:
    """Each slice starts where its task stopped, slices are in order of turn, and the first task always advances."""
    batch = take([queue_of(waiting)], budget)

    assert batch[0].task is waiting[0]
    assert [part.task for part in batch] == [task for task in waiting if task in {part.task for part in batch}]
    assert all(part.task.num_taken == part.start < part.stop <= len(part.task.rows) for part in batch)


@given(waiting_tasks(), BUDGETS)
def test_a_batch_keeps_the_budget_unless_one_candidate_alone_exceeds_it(waiting: list[Task], budget: int) -> None:
    """A batch above the budget holds one candidate, which could never fit."""
    batch = take([queue_of(waiting)], budget)

    total = sum(part.rows for part in batch)
    assert total <= budget or (len(batch), batch[0].stop - batch[0].start) == (1, 1)


@given(waiting_tasks(), BUDGETS)
def test_a_batch_leaves_no_room_that_a_waiting_candidate_could_use(waiting: list[Task], budget: int) -> None:
    """The next candidate of every task is larger than the room that is left."""
    batch = take([queue_of(waiting)], budget)

    room = budget - sum(part.rows for part in batch)
    stops = {part.task: part.stop for part in batch}
    for task in waiting:
        stop = stops.get(task, task.num_taken)
        assert stop == len(task.rows) or task.rows[stop] > room


def test_a_batch_is_of_one_lane() -> None:
    other = NamedLane("other")
    first, second, third = task_of([1, 1]), task_of([1], lane=other), task_of([1])

    assert take([queue_of([first, second, third])], 10) == [TaskSlice(first, 0, 2), TaskSlice(third, 0, 1)]
    assert take([queue_of([second, third])], 10) == [TaskSlice(second, 0, 1)]
