"""The table of attacks on the running service, and what they are made of.

An attack is a function of the service's address that takes a few seconds at most, and returns the statuses of its
requests; a connection that is closed without an answer counts as 0.
"""

import contextlib
import json
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
from support import plain_http


@dataclass(frozen=True)
class Attack:
    """allowed: the statuses that its requests may get.  quick: it takes little time, and disturbs no other test."""

    run: Callable[[str], set[int]]
    allowed: frozenset[int]
    quick: bool

    def from_elsewhere(self, url: str) -> set[int]:
        """Runs the attack at a low priority (nice 10), also in the threads that it starts.

        A real attacker has a machine of its own: the service cannot bound the time that it takes to make requests.
        """
        with ThreadPoolExecutor(1, initializer=os.nice, initargs=(10,)) as thread:  # on Linux this is per thread
            return thread.submit(self.run, url).result()


ATTACKS: dict[str, Attack] = {}
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
MB = 1_000_000
VECTORS = "vectors"  # the name of the bi-encoder, which embeds
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"  # which a client skips
HEAD = b"POST /rerank HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
BODY = b'{"query":"who","candidates":["the man","she"]}'
WORDS = ["the", "man", "who", "was", "she", "and", "is", "it", "he", "you", "no"]


def attack(*allowed: int, quick: bool = False) -> Callable[[Callable[[str], set[int]]], Callable[[str], set[int]]]:
    """Registers a function as an attack under its name."""

    def register(run: Callable[[str], set[int]]) -> Callable[[str], set[int]]:
        ATTACKS[run.__name__] = Attack(run, frozenset(allowed), quick)
        return run

    return register


def register_body(
    name: str,
    content: bytes | Callable[[], bytes],
    *allowed: int,
    path: str = "/rerank",
    method: str = "POST",
    **headers: str,
) -> None:
    """Registers an attack of one request. content: the body, or a function that writes a large one when it is sent."""
    assert callable(content) or len(content) < MB
    sent = {name.replace("_", "-"): value for name, value in ({"content_type": "application/json"} | headers).items()}

    def run(url: str) -> set[int]:
        body = content() if callable(content) else content
        return {status_of(url, method, path, content=body, headers=sent)}

    ATTACKS[name] = Attack(run, frozenset(allowed), quick=not callable(content))


def register_raw(name: str, content: bytes, *allowed: int) -> None:
    """Registers a quick attack that sends these bytes over a connection."""
    ATTACKS[name] = Attack(lambda url: send_raw(url, content), frozenset(allowed), quick=True)


def status_of(url: str, method: str, path: str, **more: Any) -> int:
    """Sends a request and returns its status, or 0 if the connection is closed without an answer."""
    try:
        return ask(url, method, path, **more).status_code
    except httpx.TransportError:
        return 0


def ask(url: str, method: str, path: str, **more: Any) -> httpx.Response:
    """The answer to a request on a connection of its own. Raises httpx.TransportError."""
    return plain_http.ask(method, url + path, timeout=90.0, **more)


def post(url: str, body: Any, **more: Any) -> int:
    return status_of(url, "POST", "/rerank", content=json.dumps(body).encode(), headers=JSON, **more)


def results_of(url: str, body: Any) -> list[dict[str, Any]]:
    """The results of a POST /rerank, which must succeed."""
    response = ask(url, "POST", "/rerank", json=body)
    assert response.status_code == httpx.codes.OK, response.text[:500]
    results: list[dict[str, Any]] = response.json()["results"]
    return results


def together(calls: Sequence[Callable[[], int]]) -> set[int]:
    """Makes all calls at once, and returns their statuses."""
    statuses: set[int] = set()
    threads = [threading.Thread(target=lambda call=call: statuses.add(call())) for call in calls]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


@contextlib.contextmanager
def connection_to(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def reset(connection: socket.socket) -> None:
    """Closes a connection with a TCP reset, like a client that crashes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def request(body: bytes = BODY, headers: bytes = b"") -> bytes:
    """The bytes of a POST /rerank. headers: further lines, each with its end."""
    return HEAD + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def send_raw(url: str, *parts: bytes) -> set[int]:
    """Sends parts over a connection, and returns the status of the first answer."""
    with connection_to(url) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except OSError:
            return {0}
        return {answer_on(connection)}


def answer_on(connection: socket.socket) -> int:
    """The status of the next answer on a connection, or 0 if there is none; most of the answer stays unread."""
    try:
        answer = connection.recv(4096).removeprefix(INTERIM) or connection.recv(4096)
    except OSError:
        return 0
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


def words(count: int) -> str:
    """A text of `count` words, the same each time."""
    return " ".join(random.Random(count).choice(WORDS) for _ in range(count))
