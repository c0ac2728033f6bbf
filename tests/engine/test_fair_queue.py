"""Clients in the task queue: each gets its share of the work, and none waits because another asks for too much."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tasks import CLIENT, LANE, Clock, NamedLane, task_of

from bandrank.engine.client_queues import AHEAD, DEMAND
from bandrank.engine.clients import Client
from bandrank.engine.task_queue import EXPECTED_PART, FINER, MAX_RETRY_AFTER_S, TaskQueue
from bandrank.engine.tasks import Task, TaskSlice
from bandrank.engine.tickets import Ticket
from bandrank.errors import InputTooLarge, Overloaded

BATCH = 40
FAST = NamedLane("fast")
POLITE, GREEDY = Client("polite"), Client("greedy")


def queue_of(
    *, patience: float = math.inf, max_waiting_rows: float = math.inf, max_wait_s: float = math.inf
) -> TaskQueue:
    """A queue in which a row takes a second."""
    queue = TaskQueue(
        max_waiting_rows=max_waiting_rows,
        max_wait_s=max_wait_s,
        clock=Clock(),
        max_batch_rows=BATCH,
        patience=patience,
    )
    queue.throughput.report(LANE.name, 1000, 1000.0)
    return queue


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
    are large.
    """
    queue = queue_of()
    for _ in range(100):
        queue.put(task_of([1] * BATCH, client=GREEDY))
    alone = [sum(part.rows for part in queue.take_batch(BATCH)) for _ in range(AHEAD)]
    queue.put(task_of([1] * 3, client=POLITE))
    beside = [sum(part.rows for part in queue.take_batch(BATCH)) for _ in range(AHEAD)]

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


def test_a_request_waits_for_a_multiple_of_its_own_work() -> None:
    """With a patience of 3, a request of 100 s waits for at most 300 s of work; a larger request may wait longer."""
    queue = queue_of(patience=3.0)
    for _ in range(4):
        queue.put(task_of([100]))
    with pytest.raises(Overloaded) as refused:
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


def test_what_others_are_handed_while_a_client_is_goes_before_its_request() -> None:
    """Others are handed as much as the client's queued work and its request together, and no more."""
    queue = queue_of()
    queue.put(task_of([1] * 20, client=POLITE))
    queue.put(task_of([1] * 90, client=GREEDY))

    assert queue.wait_s(Ticket(POLITE, math.inf), 60) == 20 + (20 + 60)


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


def test_a_request_is_admitted_behind_what_costs_less() -> None:
    """The turn of a request is given by the cost of its expected rows, as that of a task is by its rows."""
    queue = queue_of()
    large, small = Ticket(CLIENT, math.inf), Ticket(CLIENT, math.inf)
    with queue.admitted(large, {NamedLane("large", row_cost=10.0): 10}), queue.admitted(small, {LANE: 50}):
        assert (large.turn, small.turn) == (100, 50)


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
