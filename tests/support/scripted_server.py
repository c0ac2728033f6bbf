"""A server that answers with given bytes and keeps the bytes that it got, which HTTP libraries would hide."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from support.tasks import HANG_S


@dataclass
class ScriptedServer:
    """answer: the bytes to send for each request.  others: bytes to send instead, by bytes in a request's first line.

    held: whether no answer is sent.  hung_up: set when a client closes a connection without having got an answer.
    got: the requests, with their headers and with their bodies as framed.  delay_s: the delay before each answer.
    accepted: the number of connections so far.
    """

    answer: bytes
    held: bool = False
    got: list[bytes] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    others: dict[bytes, bytes] = field(default_factory=dict)
    delay_s: float = 0.0
    accepted: int = 0

    def serve(self, listener: socket.socket) -> None:
        """Accepts connections until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self.accepted += 1
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(HANG_S)
        with connection, contextlib.suppress(OSError):
            while request := read_message(connection.recv):
                self.got.append(request)
                self.arrived.set()
                if self.held:
                    if not connection.recv(1):
                        self.hung_up.set()
                    return
                time.sleep(self.delay_s)
                line = request.partition(b"\r\n")[0]
                answer = next((other for words, other in self.others.items() if words in line), self.answer)
                connection.sendall(answer)
                if b"connection: close" in answer.lower():
                    return


def read_message(recv: Callable[[int], bytes]) -> bytes:
    """One HTTP message with the framing of its body; empty at the end of the stream."""
    message = bytearray()
    while b"\r\n\r\n" not in message:
        if not (part := recv(65536)):
            return b""
        message += part
    head, _, body = message.partition(b"\r\n\r\n")
    headers = [line.lower() for line in head.split(b"\r\n")[1:]]
    length = next((int(line.partition(b":")[2]) for line in headers if line.startswith(b"content-length:")), 0)
    chunked = b"transfer-encoding: chunked" in headers
    while not body.endswith(b"0\r\n\r\n") if chunked else len(body) < length:
        if not (part := recv(65536)):
            break
        body += part
    return bytes(head + b"\r\n\r\n" + body)


def body_of(message: bytes) -> bytes:
    """The body of a message, without its framing."""
    head, _, body = message.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    content = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        content += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    return content


def headers_of(message: bytes) -> dict[str, str]:
    """The headers of a message, by their names in lower case."""
    lines = message.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


@contextlib.contextmanager
def scripted_server(answer: bytes = b"", *, held: bool = False) -> Iterator[ScriptedServer]:
    """Runs a ScriptedServer on a free port."""
    server = ScriptedServer(answer, held)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.serve, args=(listener,))
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(HANG_S)
