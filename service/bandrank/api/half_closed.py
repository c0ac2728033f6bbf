"""Clients that have shut their sending side down and wait, told apart from those that hung up.

The end of the stream looks the same for both. But what is then written to a client that hung up is answered with a
reset, while one that waits reads it; an HTTP/1.1 client ignores an interim response that it did not ask for (RFC 9110,
15.2).
"""

import asyncio
import contextlib
import select
from collections.abc import Callable

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
CAN_WATCH = hasattr(select, "epoll")  # on Linux


class HangUps:
    """Calls back when a connection is reset. Used from the event loop.

    The loop notices that only of connections that it reads from or writes to; after the end of a stream it does
    neither. So an epoll of its own, which is open while there is something to watch, waits for resets alone.
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
        """Watches a socket no longer; it may not have been watched."""
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
