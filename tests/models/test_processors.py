"""Threads that compute side by side, each on a processor of its own."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest

from bandrank.models.processors import Processors

Result = TypeVar("Result")

two_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")


def in_a_thread(compute: Callable[[], Result]) -> Result:
    """Returns what a new thread computes; a new thread, because each has its own allowed processors."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(compute).result(timeout=20)


@contextmanager
def first_on(group: Processors, processor: int) -> Iterator[None]:
    """Runs the block while a thread of the group computes on this processor, which it may not leave."""
    begun: Future[None] = Future()
    ended = threading.Event()

    def compute() -> None:
        os.sched_setaffinity(0, {processor})
        with group.apart():
            begun.set_result(None)
            ended.wait(20)

    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(compute)
        begun.result(timeout=20)
        try:
            yield
        finally:
            ended.set()
            thread.result(timeout=20)


def put_on(processor: int) -> set[int]:
    """Puts the calling thread on a processor, which it may leave, and returns the processors that it is allowed."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    os.sched_setaffinity(0, allowed)
    return allowed


@two_processors
def test_a_second_thread_leaves_the_processor_of_the_first() -> None:
    """Afterwards the scheduler is free to move it again."""
    group, processor = Processors(), min(os.sched_getaffinity(0))

    def second() -> tuple[list[int], bool]:
        allowed = put_on(processor)
        with group.apart():
            return list(group._of.values()), os.sched_getaffinity(0) == allowed

    with first_on(group, processor):
        began, free = in_a_thread(second)
    assert began[0] == processor != began[1]
    assert free
    assert not group._of


def test_a_thread_stays_where_no_other_processor_is_allowed() -> None:
    """Two workers then share the one processor."""
    group, processor = Processors(), min(os.sched_getaffinity(0))

    def second() -> tuple[list[int], set[int]]:
        os.sched_setaffinity(0, {processor})
        with group.apart():
            return list(group._of.values()), os.sched_getaffinity(0)

    with first_on(group, processor):
        assert in_a_thread(second) == ([processor] * 2, {processor})


@two_processors
def test_a_thread_that_may_not_move_computes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may refuse the call that moves a thread."""
    group, processor = Processors(), min(os.sched_getaffinity(0))

    def second() -> list[int]:
        put_on(processor)
        monkeypatch.setattr(os, "sched_setaffinity", refuse)
        with group.apart():
            return list(group._of.values())

    def refuse(*_: object) -> None:
        raise PermissionError

    with first_on(group, processor):
        assert len(in_a_thread(second)) == 2
