"""Threads that compute side by side, each on a processor of its own.

Linux wakes the workers of a batch on the processor of the thread that called them whenever the others are busy, and
takes tens of milliseconds, as long as the batch, to move one of them. Meanwhile two workers share one processor and
another process has the next one to itself.
"""

import ctypes
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def _find_current() -> Callable[[], int] | None:
    """The number of the processor that the calling thread runs on, where the system tells and lets a thread move."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    # PyDLL keeps the interpreter's lock: the call takes less time than to give the lock away and get it back.
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None)


_current = _find_current()


class Processors:
    """The processors on which a group of threads computes."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # by the thread's number: where it was when it began
        self._lock = threading.Lock()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Begins on a processor on which no other thread inside this block began, where one is allowed and the system
        can move a thread. Nothing is bound: the scheduler may move the thread again at once.
        """
        thread = threading.get_native_id()
        if _current is not None:
            with self._lock:
                if _current() in self._of.values():
                    _move(set(self._of.values()))
                self._of[thread] = _current()
        try:
            yield
        finally:
            self._of.pop(thread, None)


def _move(taken: set[int]) -> None:
    """Moves the calling thread to one of its processors that is not taken, if there is any."""
    allowed = os.sched_getaffinity(0)
    if free := allowed - taken:
        with suppress(OSError):  # refused by a sandbox, or the processor has just gone: the thread stays where it is
            os.sched_setaffinity(0, {random.choice(sorted(free))})  # noqa: S311 no secret
            os.sched_setaffinity(0, allowed)
