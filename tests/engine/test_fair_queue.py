"""Clients in the task queue: each gets its share of the work, and none waits because another asks for too much."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import BATCH, GREEDY, POLITE, queue_of
from support.tasks import CLIENT, LANE, NamedLane, task_of

from bandrank.engine.client_queues import AHEAD, DEMAND
from bandrank.engine.clients import Client
from bandrank.engine.task_queue import FINER, TaskQueue
from bandrank.engine.tasks import Task, TaskSlice
from bandrank.engine.tickets import Ticket


def handed_out(queue: TaskQueue, rows: float) -> dict[str, float]:
    """The rows that each client gets while the queue hands out the next `rows`."""
    got: dict[str, float] = {}
    while sum(got.values()) < rows:
        for part in queue.take_batch(BATCH):
            name = part.task.ticket.client.name
            got[name] = got.get(name, 0.0) + part.rows
    return got


@given(sizes=st.lists(st.integers(10, 3 * BATCH), min_size=2, max_size=4))
def test_clients_that_always_want_more_get_equal_parts(sizes: list[int]) -> None:
    """Whatever the size of requests, clients differ at most by a batch and what a client may be handed ahead."""
    queue = queue_of()
    clients = [Client(str(number)) for number in range(len(sizes))]
    total = 12 * BATCH * len(clients)
    for client, size in zip(clients, sizes, strict=True):
        for _ in range(total // size + 1):
            queue.put(task_of([1] * size, client=client))
    got = handed_out(queue, total)

    assert max(got.values()) - min(got.values()) <= (AHEAD + 2) * BATCH


def test_a_client_of_a_larger_share_gets_more() -> None:
    """Weights are share / (1 - share): a share of 3/4 gets three times as much as a share of 1/2."""
    queue = queue_of()
    large = Client("large", share=0.75)
    for client in (large, POLITE):
        for _ in range(200):
            queue.put(task_of([1] * BATCH, client=client))
    got = handed_out(queue, 160 * BATCH)

    assert got["large"] / got["polite"] == pytest.approx(3, rel=0.2)


@given(
    greedy=st.lists(st.integers(1, 20 * BATCH), min_size=1, max_size=20),
    polite=st.integers(1, AHEAD * BATCH),
    before=st.integers(0, 40),
)
def test_a_request_of_a_polite_client_goes_before_all_that_a_greedy_one_has_queued(
    greedy: list[int], polite: int, before: int
) -> None:
    """From the next batch on, every batch serves the polite request first until it is done; only its last batch is
    filled up.
    """
    queue = queue_of()
    for size in [*greedy, *[BATCH] * (before + AHEAD + 1)]:
        queue.put(task_of([1] * size, client=GREEDY))
    for _ in range(before + AHEAD):
        queue.take_batch(BATCH)
    task = task_of([1] * polite, client=POLITE)
    queue.put(task)
    while task.num_taken < polite:
        batch = queue.take_batch(BATCH)
        assert batch[0].task is task
        assert batch[0].rows == min(polite - batch[0].start, sum(part.rows for part in batch))


def test_batches_are_smaller_while_one_client_asks_too_much() -> None:
    """A polite client's next request then waits only for a small batch; while the greedy client is alone, its batches
    are large. Parts of full batches are no smaller.
    """
    queue = queue_of()
    for _ in range(100):
        queue.put(task_of([1] * BATCH, client=GREEDY))
    alone = [sum(part.rows for part in queue.take_batch(BATCH)) for _ in range(AHEAD)]
    queue.put(task_of([1] * 3, client=POLITE))
    most = [BATCH, BATCH, *[BATCH // 4] * (AHEAD - 2)]
    beside = [sum(part.rows for part in queue.take_batch(rows)) for rows in most]

    assert alone == [BATCH] * AHEAD
    assert beside == [3, *[BATCH // FINER] * (AHEAD - 1)]


def test_who_has_queued_much_asks_too_much_before_any_of_it_is_handed_out() -> None:
    """A small request of another client makes a batch of its own, and never waits for a large batch."""
    queue = queue_of(patience=1.0)
    queue.put(task_of([1] * 20 * BATCH, client=GREEDY))
    first, second = (task_of([1] * 3, client=POLITE) for _ in range(2))
    assert queue.wait_s(first.ticket, 3) == 0.0
    queue.put(first)
    batches = [queue.take_batch(BATCH) for _ in range(2)]
    queue.put(second)
    batches.append(queue.take_batch(BATCH))

    assert [sum(part.rows for part in batch) for batch in batches] == [3, BATCH // FINER, 3]
    assert [batch[0].task for batch in batches[::2]] == [first, second]


def test_nobody_is_put_off_for_ever_by_a_client_who_asks_little_at_a_time() -> None:
    """However often the polite client asks again, the greedy one gets its share in the end."""
    queue = queue_of()
    queue.put(task_of([1] * 60 * BATCH, client=GREEDY))
    got = {GREEDY: 0.0, POLITE: 0.0}
    for _ in range(200):
        queue.put(task_of([1] * (BATCH // 2), client=POLITE))
        for part in queue.take_batch(BATCH):
            got[part.task.ticket.client] += part.rows
        assert got[POLITE] - got[GREEDY] <= (DEMAND + 1) * BATCH

    assert got[GREEDY] > 10 * BATCH


def test_clients_who_ask_alike_have_large_batches() -> None:
    """Having many clients makes batches no smaller as long as none is far ahead of the others."""
    queue = queue_of()
    clients = [Client(str(number)) for number in range(8)]
    for _ in range(20):
        for client in clients:
            queue.put(task_of([1] * 10, client=client))

    assert [sum(part.rows for part in queue.take_batch(BATCH)) for _ in range(40)] == [BATCH] * 40


def test_of_new_clients_the_one_with_the_smaller_request_goes_first() -> None:
    queue = queue_of()
    large, small = task_of([1] * BATCH, client=GREEDY), task_of([1] * 3, client=POLITE)
    queue.put(large)
    queue.put(small)

    assert queue.take_batch(BATCH) == [TaskSlice(small, 0, 3), TaskSlice(large, 0, BATCH - 3)]


def test_a_client_is_forgotten_once_nothing_waits() -> None:
    queue = queue_of()
    queue.put(task_of([1] * 100 * BATCH, client=GREEDY))
    while queue.waiting_tasks:
        queue.take_batch(BATCH)
    first, second = task_of([1] * 3, client=GREEDY), task_of([1] * 5, client=POLITE)
    queue.put(second)
    queue.put(first)

    assert [part.task for part in queue.take_batch(BATCH)] == [first, second]


def test_what_others_are_handed_while_a_client_is_goes_before_its_request() -> None:
    """Others are handed as much as the client's queued work and its request together, and no more."""
    queue = queue_of()
    queue.put(task_of([1] * 20, client=POLITE))
    queue.put(task_of([1] * 90, client=GREEDY))

    assert queue.wait_s(Ticket(POLITE, math.inf), 60) == 20 + (20 + 60)


def test_a_request_is_admitted_behind_what_costs_less() -> None:
    """The turn of a request is given by the cost of its expected rows, as that of a task is by its rows."""
    queue = queue_of()
    large, small = Ticket(CLIENT, math.inf), Ticket(CLIENT, math.inf)
    with queue.admitted(large, {NamedLane("large", row_cost=10.0): 10}), queue.admitted(small, {LANE: 50}):
        assert (large.turn, small.turn) == (100, 50)


def test_what_a_costly_model_is_handed_counts_by_its_cost() -> None:
    queue = queue_of()
    large = NamedLane("large", row_cost=10.0)
    for _ in range(400):
        queue.put(task_of([1] * BATCH, client=POLITE))
        queue.put(task_of([1] * BATCH, client=GREEDY, lane=large))
    rows = {LANE.name: 0.0, large.name: 0.0}
    while rows[LANE.name] < 300 * BATCH:
        for part in queue.take_batch(BATCH):
            rows[part.task.lane.name] += part.rows

    assert rows[LANE.name] / rows[large.name] == pytest.approx(10, rel=0.3)


def test_what_a_request_was_not_expected_to_need_delays_it() -> None:
    """The request was admitted with no expected work, so its turn is set by the work that it then queues."""
    queue = queue_of()
    large, small = task_of([1] * 20), task_of([1] * 10)
    with queue.admitted(large.ticket, {}):
        queue.put(large)
        queue.put(small)

        assert [part.task for part in queue.take_batch(BATCH)] == [small, large]


def test_a_task_keeps_the_turn_of_its_request() -> None:
    queue = queue_of()
    early, late = task_of([1] * 10), task_of([1] * 11)
    with queue.admitted(early.ticket, {LANE: 20}):
        queue.put(early)
        queue.take_batch(10)
        queue.put(late)
        again: Task = task_of([1] * 10)
        again.ticket = early.ticket
        queue.put(again)

    assert queue.take_batch(10)[0].task is again
