"""The signals that stop a process."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGINT end the process with 0 at once, until something else handles them.

    The first process of a container does not get a signal that it does not handle, and a download takes minutes. A
    regular exit would wait for a thread that downloads.
    """

    def end(*_: object) -> None:
        os._exit(0)

    before = [signal.signal(number, end) for number in STOPS]
    try:
        yield
    finally:
        for number, handler in zip(STOPS, before, strict=True):
            if signal.getsignal(number) is end:
                signal.signal(number, handler)
