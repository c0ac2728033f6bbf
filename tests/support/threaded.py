"""A uvicorn server in a thread of this process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from support.tasks import HANG_S


@contextmanager
def served(config: uvicorn.Config) -> Iterator[tuple[str, int]]:
    """Runs a server on a free port of the loopback device, and stops it. Yields its address."""
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(HANG_S)
    assert not thread.is_alive()
