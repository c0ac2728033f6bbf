"""The task queue under any order of events, and under several threads."""

import asyncio
import math
import sys
import threading
from collections import defaultdict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.tasks import CLIENT, HANG_S, LANE, Clock, NamedLane, task_of

from bandrank.engine.client_queues import AHEAD, MOST_IDLE, ClientQueues, take
from bandrank.engine.clients import Client
from bandrank.engine.submit import submit
from bandrank.engine.task_queue import TaskQueue
from bandrank.engine.tasks import Task, TaskSlice
from bandrank.engine.throughput import Throughput
from bandrank.errors import NotReady


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Requests arrive, are taken in batches, hang up and expire in any order, beside a simple model of the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.drops: dict[str, int] = defaultdict(int)
        self.queue = TaskQueue(max_waiting_rows=10**9, max_wait_s=math.inf, clock=self.clock, on_drop=self._count_drop)
        self.waiting: list[Task] = []  # in order of arrival
        self.turn: dict[Task, int] = {}
        self.taken: dict[Task, int] = {}
        self.handed_out = self.expired = self.discarded = 0

    def _count_drop(self, reason: str) -> None:
        self.drops[reason] += 1

    @rule(rows=st.lists(st.integers(1, 30), min_size=1, max_size=6), patience=st.integers(1, 20))
    def put(self, rows: list[int], patience: int) -> None:
        task = task_of(rows, deadline=self.clock.now + patience)
        self.queue.put(task)
        self.waiting.append(task)
        self.turn[task] = self.handed_out + sum(rows)
        self.taken[task] = 0

    @rule(seconds=st.integers(1, 8))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.waiting))
        task.future.cancel()
        self.waiting.remove(task)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.waiting))
        self.discarded += not task.future.done()
        if not task.future.done():
            self.queue.discard(task, "cancelled")
            self._forget_dead()

    @precondition(lambda self: any(self._alive(task) for task in self.waiting))
    @rule(budget=st.integers(1, 40))
    def take(self, budget: int) -> None:
        batch = self.queue.take_batch(budget)
        self._forget_dead()
        in_turn = sorted(self.waiting, key=lambda task: self.turn[task])
        assert batch[0].task is in_turn[0]
        assert [part.task for part in batch] == [task for task in in_turn if task in {part.task for part in batch}]
        assert sum(part.rows for part in batch) <= budget or batch == [
            TaskSlice(in_turn[0], batch[0].start, batch[0].start + 1)
        ]
        for part in batch:
            assert part.start == self.taken[part.task] < part.stop
            self.taken[part.task] = part.stop
            self.handed_out += part.rows
        self.waiting = [task for task in self.waiting if self.taken[task] < len(task.rows)]

    @invariant()
    def what_waits_is_known_exactly(self) -> None:
        assert self.queue.waiting_tasks == len(self.waiting)
        assert self.queue.waiting_rows == sum(sum(task.rows[self.taken[task] :]) for task in self.waiting)
        assert dict(self.drops) == {
            reason: count for reason, count in (("expired", self.expired), ("cancelled", self.discarded)) if count
        }

    def teardown(self) -> None:
        """Hands out all tasks that are alive at the end."""
        self._forget_dead()
        self.queue.close()
        while batch := self.queue.take_batch(10):
            for part in batch:
                assert part.start == self.taken[part.task]
                self.taken[part.task] = part.stop
        assert all(self.taken[task] == len(task.rows) for task in self.waiting)

    def _alive(self, task: Task) -> bool:
        return not task.future.done() and task.deadline > self.clock.now

    def _forget_dead(self) -> None:
        """Must be called after the queue has looked for expired tasks, which settles their futures."""
        late = [task for task in self.waiting if task.deadline <= self.clock.now and not task.future.cancelled()]
        self.expired += len(late)
        self.waiting = [task for task in self.waiting if not task.future.done() and task not in late]


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase


def test_producers_and_a_consumer_lose_nothing() -> None:
    """Each producer waits for its task before it puts the next one, so the queue often runs empty and a single lost
    wake-up would end the test. Closing the queue ends the consumer.
    """
    queue = TaskQueue(max_waiting_rows=10**9, max_wait_s=math.inf, clock=Clock())
    taken: dict[Task, list[int]] = defaultdict(list)
    answered: list[Task] = []

    def produce(seed: int) -> None:
        for number in range(150):
            task = task_of([1 + (seed + number + index) % 5 for index in range(1 + number % 4)])
            queue.put(task)
            expected = [float(index) for index in range(len(task.rows))]
            assert task.future.result(timeout=HANG_S) == expected
            answered.append(task)

    def consume() -> None:
        while batch := queue.take_batch(7):
            for part in batch:
                taken[part.task] += range(part.start, part.stop)
                part.task.add_results([float(index) for index in range(part.start, part.stop)])

    consumer = threading.Thread(target=consume)
    producers = [threading.Thread(target=produce, args=(seed,)) for seed in range(6)]
    for thread in (consumer, *producers):
        thread.start()
    for producer in producers:
        producer.join(HANG_S)
    queue.close()
    consumer.join(HANG_S)

    assert not consumer.is_alive()
    assert len(answered) == 6 * 150
    assert all(taken[task] == list(range(len(task.rows))) for task in answered)
    assert (queue.waiting_rows, queue.waiting_tasks) == (0, 0)


def test_discarding_the_last_task_leaves_the_consumer_waiting() -> None:
    """An empty batch would tell the consumer that the queue is closed."""
    queue = TaskQueue(max_waiting_rows=10, max_wait_s=1.0, clock=Clock())
    dropped, next_one = task_of([1]), task_of([1])
    queue.put(dropped)
    dropped.future.cancel()
    batches: list[list[TaskSlice]] = []
    consumer = threading.Thread(target=lambda: batches.append(queue.take_batch(1)))
    consumer.start()
    queue.put(next_one)
    consumer.join(HANG_S)

    assert batches == [[TaskSlice(next_one, 0, 1)]]


def test_a_late_task_counts_as_dropped_once() -> None:
    """Its request gives it up in another thread, just when the queue finds that it is late."""
    drops: list[str] = []
    given_up = threading.Event()

    def count(reason: str) -> None:
        drops.append(reason)
        if reason == "expired":
            giving_up.start()
            given_up.wait(0.02)
        else:
            given_up.set()

    queue = TaskQueue(max_waiting_rows=10, max_wait_s=1.0, clock=(clock := Clock()), on_drop=count)
    queue.put(task := task_of([1], deadline=1.0))
    giving_up = threading.Thread(target=queue.discard, args=(task, "cancelled"))
    clock.now = 1.0
    queue.take_batch(1, wait=False)
    giving_up.join(HANG_S)

    assert drops == ["expired"]


@pytest.mark.parametrize(("now", "reason"), [(0.5, "cancelled"), (1.0, "expired")])
async def test_a_task_that_is_given_up_at_its_deadline_has_expired(now: float, reason: str) -> None:
    """A timeout around the call cancels it, if it comes before the call's own."""
    drops: list[str] = []
    queue = TaskQueue(max_waiting_rows=10, max_wait_s=1.0, clock=(clock := Clock()), on_drop=drops.append)
    call = asyncio.create_task(submit(queue, task_of([1], deadline=1.0)))
    await asyncio.sleep(0)
    clock.now = now
    call.cancel()
    await asyncio.wait([call])

    assert drops == [reason]


def test_refusals_do_not_pile_up() -> None:
    """A raised error collects a traceback, so each refusal must be a new one."""
    queue = TaskQueue(max_waiting_rows=1, max_wait_s=1.0, clock=Clock())
    queue.close()
    depths = []
    for _ in range(3):
        with pytest.raises(NotReady) as refused:
            queue.put(task_of([1]))
        depths.append(len(refused.traceback))

    assert depths == [depths[0]] * 3


def test_clients_that_have_gone_are_forgotten_while_others_stay() -> None:
    """Each would slow down every request. Those that were handed most are remembered."""
    queues = ClientQueues(Throughput(), 40)
    queues.of(CLIENT).tickets.add(task_of([1]).ticket)
    for number in range(2 * MOST_IDLE):
        queues.put(task_of([1 if number else 9], client=Client(f"{number}")), 0.0)
        queues.hand_out(take(queues, 40))
        queues.forget_idle()

    assert len([*queues]) == 1 + MOST_IDLE
    assert queues.of(Client("0")).clock == 9 - AHEAD * 40


def test_a_request_calls_no_function_for_each_client_that_waits() -> None:
    queue, calls = TaskQueue(max_waiting_rows=10**9, max_wait_s=math.inf, clock=Clock()), [False]
    for number in range(1000):
        queue.put(task_of([1], client=Client(f"{number}")))
    task = task_of([1])
    sys.setprofile(lambda _, event, __: calls.append(event == "call"))
    with queue.admitted(task.ticket, {LANE: 1}):
        queue.put(task)
        queue.discard(task, "cancelled")
    sys.setprofile(None)

    assert sum(calls) < 1000


def test_turns_are_by_cost_and_not_by_rows() -> None:
    queue = TaskQueue(max_waiting_rows=10**9, max_wait_s=math.inf, clock=Clock())
    large, small = NamedLane("large", row_cost=10.0), NamedLane("small")
    tasks = {"large": task_of([1] * 10, lane=large), "50": task_of([1] * 50, lane=small)}
    tasks["90"] = task_of([1] * 90, lane=small)
    for task in tasks.values():
        queue.put(task)
    order = [name for _ in range(4) for part in queue.take_batch(60) for name in tasks if tasks[name] is part.task]

    assert order == ["50", "90", "90", "90", "large"]


def test_work_handed_out_counts_by_its_cost() -> None:
    """A task that arrives after a costly batch was taken goes behind what had been waiting."""
    queue = TaskQueue(max_waiting_rows=10**9, max_wait_s=math.inf, clock=Clock())
    large, small = NamedLane("large", row_cost=10.0), NamedLane("small")
    waiting = task_of([1] * 80, lane=small)
    queue.put(task_of([1] * 4, lane=large))
    queue.put(waiting)
    queue.take_batch(4)  # the costly task, as 40 rows of the small model
    late = task_of([1] * 50, lane=small)
    queue.put(late)

    assert [part.task for part in queue.take_batch(80)] == [waiting]
    assert [part.task for part in queue.take_batch(80)] == [late]


def test_a_task_that_has_failed_gets_no_more_results() -> None:
    """Results are kept in order of the candidates, so none may follow a missing one."""
    task = task_of([1, 1, 1])
    task.add_results([1.0])
    task.finish(NotReady("no"))
    task.add_results([3.0])

    assert task.done_so_far == [1.0]
