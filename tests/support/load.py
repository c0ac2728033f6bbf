"""Clients that keep account of every request: answered right, refused, or never read; anything else is lost."""

import contextlib
import json
import random
import socket
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse, RemoteDisconnected

from support.soak_pool import Call, Pool, draw

TOLERANCE = 1e-4  # of raw scores, whatever else is in the batch
MOST_CANDIDATES = 20
PATIENCE_S = 60.0  # an answer that takes longer is a lost one
REFUSALS = {429, 503}
HEAD = b"POST /rerank HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@dataclass(frozen=True)
class Answer:
    """An answer, and whether the connection ends with it."""

    status: int
    body: bytes
    ends: bool


@dataclass
class Account:
    """What became of the requests of all clients, each counted once.

    unread: those that the service never read: it closed the connection before, or did not accept it.
    others: those that were answered with one of the statuses in `allowed`.
    lost: descriptions of those that were read and got no answer, part of one, a wrong one or an error.
    """

    allowed: frozenset[int] = frozenset()
    right: int = 0
    refused: int = 0
    unread: int = 0
    others: int = 0
    lost: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, pool: Pool, call: Call, answer: Answer | None) -> bool:
        """Counts an answer, None if the request was not read; returns whether its connection ends."""
        fault = why_wrong(pool, call, answer.body) if answer is not None and answer.status == 200 else None
        with self._lock:
            if answer is None:
                self.unread += 1
            elif fault is not None:
                self.lost.append(fault)
            elif answer.status == 200:
                self.right += 1
            elif answer.status in REFUSALS:
                self.refused += 1
            elif answer.status in self.allowed:
                self.others += 1
            else:
                self.lost.append(f"{answer.status}: {answer.body[:300]!r}")
        return answer is None or answer.ends

    def lose(self, reason: str) -> bool:
        """Counts a lost request; returns True, because its connection has to end."""
        with self._lock:
            self.lost.append(reason)
        return True


class Lost(Exception):
    """A request was read but not answered, or not answered to the end."""


@contextlib.contextmanager
def load(url: str, pool: Pool, *, clients: int = 4, allowed: Collection[int] = ()) -> Iterator[Account]:
    """Runs clients that send one request after the other until the block ends, even while nobody listens.

    allowed: further statuses that count as honest answers; they are counted apart.
    """
    account, stop = Account(frozenset(allowed)), threading.Event()

    def ask(rng: random.Random) -> None:
        host, port = url.removeprefix("http://").split(":")
        connection: socket.socket | None = None  # kept alive for as long as the service likes
        while not stop.is_set():
            call = draw(pool, rng, num_candidates=rng.randint(1, MOST_CANDIDATES))
            try:
                if connection is None:
                    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
                answer = exchange(connection, json.dumps(call.body | {"raw_scores": True}).encode())
                ends = account.enter(pool, call, answer)
            except ConnectionError:  # nobody listens, or nobody listens any more
                stop.wait(0.01)
                ends = account.enter(pool, call, None)
            except (Lost, OSError) as error:
                ends = account.lose(repr(error))
            if connection is not None and (ends or stop.is_set()):
                connection.close()
                connection = None

    threads = [threading.Thread(target=ask, args=(random.Random(number),)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield account
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def exchange(connection: socket.socket, body: bytes) -> Answer | None:
    """The answer to a request; None if the service closed the connection before it had read the request.

    A connection that is closed with something unread is reset, and one whose data were all read ends properly; so the
    kernel tells whether a service had read a request before it closed the connection. Raises Lost if it had,
    or if the answer breaks off.
    """
    try:
        connection.sendall(HEAD % len(body) + body)
        response = HTTPResponse(connection, method="POST")
        response.begin()
    except RemoteDisconnected:  # the connection was closed, and is reset if the request came after that
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return None
        raise Lost("the request was read, and the connection closed") from None
    except (ConnectionResetError, BrokenPipeError):
        return None
    try:
        return Answer(response.status, response.read(), response.will_close)
    except (HTTPException, OSError) as error:
        raise Lost(f"the answer broke off: {error!r}") from error


def why_wrong(pool: Pool, call: Call, body: bytes) -> str | None:
    """What is wrong with an answer; None if every score in it is right and none is missing."""
    results = json.loads(body)["results"]
    raw = pool.raw_scores[call.query]
    if len(results) != call.body.get("top_n", len(call.texts)):
        return f"{len(results)} results instead of {call.body.get('top_n', len(call.texts))}"
    for result in results:
        expected = raw[call.texts[result["index"]]]
        if abs(result["relevance_score"] - expected) > TOLERANCE:
            return f"a score of {result['relevance_score']} instead of {expected}"
    return None
