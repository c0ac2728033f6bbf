"""The table of attacks on the running service, each a function of its address that takes some seconds at most.

`ATTACKS` maps a name to the attack and the statuses that its requests may get; a connection that is closed counts as 0.
"""

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx

Attack = Callable[[str], set[int]]
ATTACKS: dict[str, tuple[Attack, set[int]]] = {}
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
MB = 1_000_000


def attack(*allowed: int) -> Callable[[Attack], Attack]:
    """Registers an attack under its function's name. allowed: statuses, 0 for a closed connection."""

    def register(function: Attack) -> Attack:
        ATTACKS[function.__name__] = function, set(allowed)
        return function

    return register


def register_body(
    name: str, content: bytes, *allowed: int, path: str = "/rerank", method: str = "POST", **headers: str
) -> None:
    """Registers an attack of one request with this body."""
    sent = {name.replace("_", "-"): value for name, value in ({"content_type": "application/json"} | headers).items()}
    ATTACKS[name] = (lambda url: {status_of(url, method, path, content=content, headers=sent)}), set(allowed)


def status_of(url: str, method: str, path: str, **more: Any) -> int:
    """The status of a request; 0 if its connection is closed without one."""
    try:
        return httpx.request(method, url + path, timeout=90.0, trust_env=False, **more).status_code
    except httpx.TransportError:
        return 0


def post(url: str, body: Any, **more: Any) -> int:
    """The status of a POST /rerank with a JSON body."""
    return status_of(url, "POST", "/rerank", content=json.dumps(body).encode(), headers=JSON, **more)


def together(calls: Sequence[Callable[[], int]]) -> set[int]:
    """The statuses of calls that run at once."""
    statuses: set[int] = set()
    threads = [threading.Thread(target=lambda call=call: statuses.add(call())) for call in calls]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


@contextlib.contextmanager
def connection_to(url: str) -> Iterator[socket.socket]:
    """An open connection to the service."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def send_raw(url: str, *parts: bytes, pause_s: float = 0.0) -> set[int]:
    """Sends parts over a connection; the status of the first answer."""
    with connection_to(url) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
            answer = connection.recv(4096)
        except OSError:
            return {0}
    return {int(answer.split(b" ", 2)[1])} if answer.startswith(b"HTTP/1.") else {0}


HEAD = b"POST /rerank HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
WORDS = ["the", "man", "who", "was", "she", "and", "is", "it", "he", "you", "no"]


def words(count: int) -> str:
    """A text of so many words, always the same."""
    return " ".join(random.Random(count).choice(WORDS) for _ in range(count))
