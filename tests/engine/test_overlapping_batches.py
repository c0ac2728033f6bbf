"""While a device computes a batch, the host prepares the next; no result is lost, swapped or held back by that."""

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tasks import HANG_S, Clock, task_of, wait_until
from support.working import Dies, open_queue, work_off

from bandrank.engine.clients import Client
from bandrank.engine.task_queue import TaskQueue
from bandrank.engine.tasks import AnySlice, Outcome, Outcomes
from bandrank.engine.tickets import Ticket
from bandrank.engine.worker import ScoringWorker
from bandrank.errors import ScoringFailed
from bandrank.metrics import Metrics
from bandrank.models.arriving import Arriving
from bandrank.models.workers import Workers

Watch = Callable[[Sequence[AnySlice]], None]


@dataclass(eq=False)
class Device:
    """A device that records what its lanes begin and end, in order, as "begin NAME SIZE" or "end NAME SIZE".

    on_begin, on_end: called with the slices, and may raise.  on_wait: called with the slices while the worker waits for
    room; gives the indices of those whose outcome comes early.  seconds: what a batch takes on the clock.
    """

    on_begin: Watch = lambda _: None
    on_end: Watch = lambda _: None
    on_wait: Callable[[Sequence[AnySlice]], Iterable[int]] = lambda _: ()
    clock: Clock = field(default_factory=Clock)
    seconds: float = 0.0
    events: list[str] = field(default_factory=list)
    free_at: float = 0.0

    def lane(self, name: str, *, overlaps: bool = True) -> "DeviceLane":
        return DeviceLane(name, overlaps, self)


@dataclass(frozen=True, eq=False)
class DeviceLane:
    """A lane whose result for a candidate is its index in the task."""

    name: str
    overlaps: bool
    device: Device
    row_cost: float = 1.0

    def begin(self, slices: Sequence[AnySlice]) -> Outcomes[float]:
        device, what = self.device, f"{self.name} {sum(part.stop - part.start for part in slices)}"
        device.events.append(f"begin {what}")
        device.on_begin(slices)
        device.free_at = done = max(device.clock.now, device.free_at) + device.seconds

        results = [[float(index) for index in range(part.start, part.stop)] for part in slices]

        def outcomes() -> list[Outcome[float]]:
            device.events.append(f"end {what}")
            device.on_end(slices)
            device.clock.now = max(device.clock.now, done)
            return [*results]

        return Arriving(outcomes, lambda: ((index, results[index]) for index in device.on_wait(slices)))


def test_the_next_batch_starts_before_the_last_is_awaited() -> None:
    """One batch is computed and one follows, never more; here each batch holds one candidate."""
    device = Device()
    task = task_of([1.0] * 5, lane=device.lane("gpu"))
    work_off(open_queue(task), max_batch_rows=1)

    assert device.events == [f"{what} gpu 1" for what in ("begin", *["begin", "end"] * 4, "end")]
    assert task.future.result(timeout=0) == [0.0, 1.0, 2.0, 3.0, 4.0]


@dataclass(frozen=True, eq=False)
class PartsLane(DeviceLane):
    """A lane whose slices are parts for two workers; a part ends once the event of its number of rows is set."""

    pool: Workers = field(default_factory=lambda: Workers(2))
    ends: Sequence[threading.Event] = field(default_factory=lambda: [threading.Event() for _ in range(6)])

    def begin(self, slices: Sequence[AnySlice]) -> Outcomes[float]:
        self.device.events.append(f"begin {[part.rows for part in slices]}")

        def compute(part: AnySlice) -> list[float]:
            assert self.ends[int(part.rows)].wait(HANG_S)
            return [part.rows]

        return self.pool.begin(compute, slices).read(list, iter)


def test_a_batch_begins_behind_another_once_all_parts_of_that_have_begun() -> None:
    """Tasks that come before are one batch. Each task is answered when its part ends, but not before those of the batch
    ahead; a batch that ends before that one tells no speed.
    """
    ahead, clock = PartsLane("ahead", True, Device()), Clock()
    behind = replace(ahead, name="behind")
    tasks = [task_of([rows], lane=ahead) for rows in (1.0, 2.0, 3.0)]
    late = [task_of([rows], lane=behind) for rows in (4.0, 5.0)]
    queue = open_queue(*tasks, clock=clock)
    worker = ScoringWorker(queue, max_batch_rows=10, metrics=Metrics())
    worker.start()
    try:
        wait_until(lambda: not queue.waiting_tasks)
        queue.put(late[0])
        with pytest.raises(TimeoutError):
            wait_until(lambda: not queue.waiting_tasks, within_s=0.05)
        queue.put(late[1])
        ahead.ends[1].set()
        wait_until(lambda: not queue.waiting_tasks)
        for end in ahead.ends[3:]:
            end.set()
        assert tasks[2].future.result(timeout=HANG_S) == [3.0]
        ahead.pool.run(abs, [0, 0])  # by the worker that has ended all other parts
        clock.now = 1.0
    finally:
        for end in ahead.ends:
            end.set()
        queue.close()
    assert worker.join(HANG_S)
    assert [task.future.result(timeout=0) for task in (*tasks, *late)] == [[1.0], [2.0], [3.0], [4.0], [5.0]]
    assert ahead.device.events == ["begin [1.0, 2.0, 3.0]", "begin [4.0, 5.0]"]
    assert queue.throughput.seconds("ahead", 6) == 1.0
    assert queue.throughput.age_s("behind") == math.inf


def test_a_batch_that_waits_for_a_request_is_taken_ahead_once_that_has_ended() -> None:
    """The request ends without the work that it was expected to queue."""
    lane = PartsLane("parts", True, Device())
    queue = TaskQueue(max_waiting_rows=99, max_wait_s=math.inf, clock=Clock(), max_batch_rows=1)
    queue.put(task_of([1.0] * 20, lane=lane))
    worker = ScoringWorker(queue, max_batch_rows=1, metrics=Metrics())
    with queue.admitted(Ticket(Client("polite"), math.inf), {lane: 1.0}):
        worker.start()
        wait_until(lambda: lane.device.events)
        with pytest.raises(TimeoutError):
            wait_until(lambda: lane.device.events[1:], within_s=0.05)
    wait_until(lambda: lane.device.events[1:], within_s=5)
    lane.ends[1].set()
    queue.close()
    assert worker.join(HANG_S)


def test_a_request_is_answered_before_the_rest_of_its_batch_ends() -> None:
    """Outcomes that come early are handed out while the worker waits for room, and only once."""
    device = Device()
    lane = device.lane("cpu")
    first, second, third = (task_of([1.0] * size, lane=lane) for size in (1, 2, 1))
    answered = []

    def parts(slices: Sequence[AnySlice]) -> Iterable[int]:
        for index in (1, 0):
            yield index
            answered.append([part.task.future.done() for part in slices])

    device.on_wait = parts
    work_off(open_queue(first, second, third), max_batch_rows=10)
    assert answered == [[False, True, False], [True, True, False]]
    assert [task.future.result(timeout=0) for task in (first, second, third)] == [[0.0], [0.0, 1.0], [0.0]]


def test_only_what_has_not_come_early_is_retried() -> None:
    """The rest of a batch that fails is computed again; a failure of the early outcomes themselves loses nothing."""

    def parts(slices: Sequence[AnySlice]) -> Iterable[int]:
        if len(slices) == 3:
            yield 1
            raise MemoryError

    def fail_whole(slices: Sequence[AnySlice]) -> None:
        if len(slices) == 3:
            raise RuntimeError("a part failed")

    device = Device(on_wait=parts, on_end=fail_whole)
    lane = device.lane("cpu")
    tasks = [task_of([1.0] * size, lane=lane) for size in (1, 4, 2)]
    work_off(open_queue(*tasks), max_batch_rows=10)
    assert [task.future.result(timeout=0) for task in tasks] == [[0.0], [0.0, 1.0, 2.0, 3.0], [0.0, 1.0]]
    begun = [event for event in device.events if event.startswith("begin")]
    assert begun == ["begin cpu 7", "begin cpu 1", "begin cpu 4"]


def test_a_lane_that_keeps_the_host_busy_waits_for_batches_in_flight() -> None:
    """A finished result is not held back while another batch is computed."""
    device = Device()
    lanes = device.lane("gpu"), device.lane("cpu", overlaps=False), device.lane("gpu2")
    work_off(open_queue(*(task_of([1.0], lane=lane) for lane in lanes)), max_batch_rows=1)

    assert device.events == [
        "begin gpu 1", "end gpu 1", "begin cpu 1", "end cpu 1", "begin gpu2 1", "end gpu2 1",
    ]  # fmt: skip


def test_an_answer_does_not_wait_for_another_request() -> None:
    """The queue stays open and empty while the worker hands out the results."""
    task = task_of([1.0, 1.0], lane=Device().lane("gpu"))
    queue = open_queue(task)
    worker = ScoringWorker(queue, max_batch_rows=1, metrics=Metrics())
    worker.start()
    assert task.future.result(timeout=HANG_S) == [0.0, 1.0]
    queue.close()
    worker.join()


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_thread_that_waits_keeps_no_task_in_memory(overlaps: bool) -> None:
    task = task_of([1.0], lane=Device(on_wait=lambda _: [0]).lane("gpu", overlaps=overlaps))
    kept = weakref.ref(task)
    queue = open_queue(task)
    worker = ScoringWorker(queue, max_batch_rows=1, metrics=Metrics())
    worker.start()
    assert task.future.result(timeout=HANG_S) == [0.0]
    del task
    wait_until(lambda: kept() is None, within_s=5)
    queue.close()
    assert worker.join(HANG_S)


def test_batches_in_flight_are_handed_out_before_a_failed_one_is_retried() -> None:
    """The memory of those batches is then free for the retry."""
    device = Device()

    def choke(slices: Sequence[AnySlice]) -> None:
        if sum(part.stop - part.start for part in slices) > 1:
            raise torch.OutOfMemoryError("too large")

    device.on_begin = choke
    tasks = [task_of([1.0] * size, lane=device.lane(name)) for name, size in (("a", 1), ("b", 2))]
    work_off(open_queue(*tasks), max_batch_rows=2)

    assert device.events == ["begin a 1", "begin b 2", "end a 1", "begin b 1", "end b 1", "begin b 1", "end b 1"]
    assert [task.future.result(timeout=0) for task in tasks] == [[0.0], [0.0, 1.0]]


def test_a_failed_batch_holds_no_memory_during_its_retry() -> None:
    """The reported error must not keep the tensors of the failed batch alive."""
    device = Device()
    made: list[weakref.ref[torch.Tensor]] = []

    def choke(slices: Sequence[AnySlice]) -> None:
        assert all(tensor() is None for tensor in made)
        activations = torch.zeros(10)
        made.append(weakref.ref(activations))
        if sum(part.stop - part.start for part in slices) > 1:
            raise torch.OutOfMemoryError("too large")

    device.on_begin = choke
    task = task_of([1.0] * 4, lane=device.lane("gpu"))
    work_off(open_queue(task), max_batch_rows=4)

    assert task.future.result(timeout=0) == [0.0, 1.0, 2.0, 3.0]


def test_the_rest_of_a_task_that_fails_is_not_computed() -> None:
    """When a batch is retried in parts, parts of the task after the failed one are left out."""
    device = Device()

    def choke(slices: Sequence[AnySlice]) -> None:
        if len(slices[0]) > 1 or slices[0].start == 1:
            raise torch.OutOfMemoryError("too large")

    device.on_begin = choke
    task = task_of([1.0] * 4, lane=device.lane("gpu"))
    work_off(open_queue(task), max_batch_rows=4)

    assert device.events == ["begin gpu 4", "begin gpu 2", "begin gpu 1", "end gpu 1", "begin gpu 1"]
    assert task.done_so_far == [0.0]
    assert isinstance(task.future.exception(timeout=0), ScoringFailed)


@given(
    shapes=st.lists(
        st.integers(1, 6).flatmap(
            lambda size: st.tuples(st.just(size), st.integers(0, 2), st.none() | st.integers(0, size - 1))
        ),
        min_size=1,
        max_size=8,
    ),
    budget=st.integers(1, 8),
    at_the_end=st.booleans(),
    error=st.sampled_from([RuntimeError, torch.OutOfMemoryError]),
)
def test_every_task_gets_its_own_results_or_its_own_failure(
    shapes: list[tuple[int, int, int | None]], budget: int, at_the_end: bool, error: type[Exception]
) -> None:
    """This holds however batches overlap, whichever candidate cannot be scored, and whether its batch fails when
    started or when awaited. A failed task keeps its leading results.
    """
    device = Device()
    lanes = device.lane("gpu"), device.lane("gpu2"), device.lane("cpu", overlaps=False)
    tasks = [task_of([1.0] * size, lane=lanes[lane]) for size, lane, _ in shapes]
    bad = {task: index for task, (_, _, index) in zip(tasks, shapes, strict=True) if index is not None}

    def choke(slices: Sequence[AnySlice]) -> None:
        if any(part.task in bad and part.start <= bad[part.task] < part.stop for part in slices):
            raise error("poison")

    if at_the_end:
        device.on_end = choke
    else:
        device.on_begin = choke
    work_off(open_queue(*tasks), max_batch_rows=budget)

    for task in tasks:
        if task in bad:
            assert isinstance(task.future.exception(timeout=0), ScoringFailed)
            assert task.done_so_far == [float(index) for index in range(bad[task])][: len(task.done_so_far)]
        else:
            assert task.future.result(timeout=0) == [float(index) for index in range(len(task.candidates))]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("event", ["begin b 1", "end a 1", "end b 1"])
def test_a_dying_thread_leaves_nobody_waiting(event: str) -> None:
    device = Device()

    def die(_: Sequence[AnySlice]) -> None:
        if device.events[-1] == event:
            raise Dies

    device.on_begin = device.on_end = die
    deaths: list[str] = []
    tasks = [task_of([1.0], lane=device.lane(name)) for name in "abc"]
    work_off(open_queue(*tasks), max_batch_rows=1, on_death=lambda: deaths.append("died"))

    assert deaths == ["died"]
    assert all(task.future.done() for task in tasks)


def test_time_that_two_batches_share_counts_once() -> None:
    """Ten batches of one row and 2 s each are timed as 2 s a row, although they overlap."""
    clock = Clock()
    device = Device(clock=clock, seconds=2.0)
    queue = open_queue(task_of([1.0] * 10, lane=device.lane("gpu")), clock=clock)
    work_off(queue, max_batch_rows=1)

    assert clock.now == 20
    assert queue.throughput.seconds("gpu", 1) == pytest.approx(2.0)
