"""A relay between a service and its Redis that delays, cuts off or replaces the replies."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator


class Proxy:
    """delay_s: the delay of each reply.  cut: the share of replies that a reset cuts off in the middle.

    instead: the bytes to send in place of each reply, if any.
    """

    def __init__(self, port: int) -> None:
        self.delay_s, self.cut, self.instead = 0.0, 0.0, b""
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._rng = random.Random(0)
        self._open: set[socket.socket] = set()
        self._closed = False
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def lead_to(self, port: int) -> None:
        """Relays connections to another port from now on; those that are open stay where they are."""
        self._target = ("127.0.0.1", port)

    def calm(self) -> None:
        """Relays everything unchanged from now on."""
        self.delay_s, self.cut, self.instead = 0.0, 0.0, b""

    def run(self) -> None:
        """Accepts connections until the relay is closed, even after one could not be accepted."""
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                time.sleep(0.01)  # perhaps no descriptor was free
            else:
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Ends all connections."""
        self._closed = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _relay(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            self._open |= {client, server}
            asking = threading.Thread(target=self._copy, args=(client, server), daemon=True)
            asking.start()
            self._answer(server, client)
            asking.join()
        self._open -= {client}

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        while data := server.recv(65536):
            time.sleep(self.delay_s)
            if self._rng.random() < self.cut:
                client.sendall(data[: len(data) // 2])
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                break
            client.sendall(self.instead or data)
        for one in (client, server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """A running relay to a loopback port."""
    proxy = Proxy(port)
    thread = threading.Thread(target=proxy.run)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
