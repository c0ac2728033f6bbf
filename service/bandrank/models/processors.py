"""Spreads threads that compute side by side over the processors, and keeps these awake.

While the other processors are busy, Linux wakes the workers of a batch on the processor of the thread that called them,
and takes tens of milliseconds, as long as the batch, to move one away. Meanwhile two workers share one processor and
another process has the next one to itself.
"""

import ctypes
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bandrank_kernels.native.awake import Awake

# The calling thread's processor. PyDLL keeps the interpreter's lock: the call takes less time than releasing the lock
# and taking it again.
_current = ctypes.PyDLL(None).sched_getcpu


class Processors:
    """The processors on which a group of threads computes.

    awake: keeps them awake after a thread has computed, if given.
    """

    def __init__(self) -> None:
        self.awake: Awake | None = None
        self._of: dict[int, int] = {}  # by thread id: the processor on which it began
        self._lock = threading.Lock()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Starts the block on a processor where no other thread inside it started, if one is allowed. The thread is not
        bound to it: the scheduler may move it again at once.
        """
        thread = threading.get_native_id()
        with self._lock:
            if _current() in self._of.values():
                _move(set(self._of.values()))
            self._of[thread] = _current()
        try:
            yield
        finally:
            del self._of[thread]

    def keep_awake(self) -> None:
        """Keeps the calling thread's processor awake for a while."""
        if self.awake is not None:
            self.awake.stay(_current())


def _move(taken: set[int]) -> None:
    """Moves the calling thread to one of its processors that is not taken, if there is any."""
    allowed = os.sched_getaffinity(0)
    if free := allowed - taken:
        with suppress(OSError):  # refused by a sandbox, or the processor has just gone: the thread stays where it is
            os.sched_setaffinity(0, {random.choice(sorted(free))})  # noqa: S311 no secret
            os.sched_setaffinity(0, allowed)
