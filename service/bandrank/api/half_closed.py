"""Tells apart clients that hung up and clients that have only shut down their sending side and wait for an answer.

The stream ends in the same way for both. But a client that hung up answers whatever is then written to it with a reset,
while one that waits reads it. So an interim response is written, which an HTTP/1.1 client ignores if it did not ask for
it (RFC 9110, 15.2).
"""

import asyncio
import contextlib
import select
from collections.abc import Callable

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class HangUps:
    """Calls back when a connection is reset. Used from the event loop.

    The loop notices a reset only of connections that it reads from or writes to, and after the end of a stream it does
    neither. So a separate epoll, open while there is something to watch, waits for resets alone.
    """

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._gone: dict[int, Callable[[], None]] = {}

    def watch(self, descriptor: int, gone: Callable[[], None]) -> None:
        """Calls `gone` once if the socket is reset before it is forgotten."""
        if self._epoll is None:
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._look)
        self._gone[descriptor] = gone
        self._epoll.register(descriptor, 0)  # errors and hang-ups are reported in any case

    def forget(self, descriptor: int) -> None:
        """Stops watching a socket, if it was watched."""
        if self._epoll is None or self._gone.pop(descriptor, None) is None:
            return
        with contextlib.suppress(OSError):  # it is closed already
            self._epoll.unregister(descriptor)
        if not self._gone:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0) if self._epoll is not None else ():
            gone = self._gone[descriptor]
            self.forget(descriptor)
            gone()
