"""Requests that are too large to be scored in time, and requests that only seem so while the service is slow."""

import pytest
from support.models import tiny_bi_encoder
from support.serving import served
from support.tasks import LANE, Clock, task_of

from bandrank.engine.clients import ITSELF
from bandrank.engine.representation_source import RepresentationSource
from bandrank.engine.task_queue import TaskQueue
from bandrank.errors import InputTooLarge, Overloaded
from bandrank.settings import Settings


def open_queue(*, max_wait_s: float, max_waiting_rows: float = 1e9) -> tuple[TaskQueue, Clock]:
    clock = Clock()
    return TaskQueue(max_waiting_rows=max_waiting_rows, max_wait_s=max_wait_s, clock=clock), clock


@pytest.mark.parametrize("rows", [[11], [6, 5], [5]])
def test_a_task_that_an_idle_service_could_not_do_is_too_large(rows: list[float]) -> None:
    """A task too large in rows or in seconds is told to send less, not to try again."""
    queue, _ = open_queue(max_waiting_rows=10, max_wait_s=4.0)
    queue.throughput.report(LANE.name, 1, 1.0)
    with pytest.raises(InputTooLarge, match="fewer or shorter texts"):
        queue.put(task_of(rows))
    queue.put(task_of([4]))


def test_a_service_that_was_slow_for_a_while_is_asked_again() -> None:
    """A request that is too large only at the recent speed is told to try again, and admitted once that speed is
    outdated.
    """
    queue, clock = open_queue(max_wait_s=4.0)
    queue.throughput.report(LANE.name, 100, 1.0)
    for _ in range(50):
        queue.throughput.report(LANE.name, 100, 10.0)
    queue.put(task_of([30]))
    queue.take_batch(1000)
    with pytest.raises(InputTooLarge):
        queue.put(task_of([401]))

    clock.now += 10.0
    with pytest.raises(Overloaded, match=r"at the present speed.* try again in 20 s") as refused:
        queue.put(task_of([300]))
    assert refused.value.retry_after_s == pytest.approx(20.0)

    clock.now += 20.0
    queue.put(task_of([300], deadline=clock.now + 100))
    queue.take_batch(1000)
    for _ in range(50):
        queue.throughput.report(LANE.name, 100, 10.0)
    with pytest.raises(Overloaded):
        queue.put(task_of([300], deadline=clock.now + 100))


async def test_texts_are_encoded_ahead_in_parts_that_may_wait() -> None:
    """However few rows may, if each text has room."""
    texts = [f"the man was over there, who is {number}?" for number in range(60)]
    async with served(tiny_bi_encoder(), settings=Settings(device="cpu", max_waiting_rows=200)) as model:
        source = model.stages[0].scorer.source
        assert isinstance(source, RepresentationSource)

        assert await source.encode_ahead(texts, client=ITSELF, timeout_s=60.0) == len(texts)
