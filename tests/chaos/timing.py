"""Attacks by when and how fast something is sent, read or broken off."""

import contextlib
import json
import random
import socket
import time
from collections.abc import Iterator

from chaos.table import BODY, HEAD, answer_on, attack, connection_to, post, request, reset, status_of, together, words
from support.tasks import wait_until

LARGE = json.dumps({"query": "x", "candidates": [words(100)] * 30}).encode()
RETURNED = json.dumps({"query": "x", "candidates": ["man " * 250_000], "return_documents": True}).encode()
LINES = (
    b"PUT /candidates HTTP/1.1\r\nHost: b\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@contextlib.contextmanager
def connections(url: str, count: int) -> Iterator[list[socket.socket]]:
    """Opens `count` connections."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connection_to(url)) for _ in range(count)]


def stop_before_the_end(url: str, whole: bytes, seconds: float) -> set[int]:
    """The answers to fifty requests that lack their last byte for a while."""
    with connections(url, 50) as waiting:
        for connection in waiting:
            connection.sendall(whole[:-1])
        time.sleep(seconds)
        for connection in waiting:
            connection.sendall(whole[-1:])
        return {answer_on(connection) for connection in waiting}


@attack(200, 408, quick=True)
def bodies_that_stop_right_before_their_end(url: str) -> set[int]:
    return stop_before_the_end(url, request(), 0.5)


@attack(200, quick=True)
def headers_that_stop_right_before_their_end(url: str) -> set[int]:
    return stop_before_the_end(url, b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n", 0.3)


@attack(200, quick=True)
def chunks_that_stop_between_two(url: str) -> set[int]:
    """Fifty bodies stop after a chunk, and their connections are reset."""
    with connections(url, 50) as waiting:
        for connection in waiting:
            connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n8\r\n" + BODY[:8] + b"\r\n")
        time.sleep(0.3)
        for connection in waiting:
            reset(connection)
        return {status_of(url, "GET", "/healthz")}


@attack(200, quick=True)
def connections_that_are_reset_at_once(url: str) -> set[int]:
    for _ in range(300):
        with connection_to(url) as connection:
            reset(connection)
    return {status_of(url, "GET", "/healthz")}


@attack(200, quick=True)
def connections_that_are_reset_in_a_header(url: str) -> set[int]:
    whole = request()
    for number in range(200):
        with connection_to(url) as connection:
            connection.sendall(whole[: 1 + number % (len(whole) - 1)])
            reset(connection)
    return {status_of(url, "GET", "/healthz")}


@attack(200)
def answers_that_are_broken_off_in_their_middle(url: str) -> set[int]:
    """Thirty clients read a kilobyte of a large answer, and reset their connections."""
    for _ in range(30):
        with connection_to(url) as connection:
            connection.sendall(request(RETURNED))
            connection.recv(1000)
            reset(connection)
    return {status_of(url, "GET", "/healthz")}


@attack(200, quick=True)
def requests_that_hang_up_as_a_batch_begins(url: str) -> set[int]:
    """A hundred connections are reset after 0 to 20 ms."""
    rng = random.Random(0)
    for _ in range(100):
        with connection_to(url) as connection:
            connection.sendall(request())
            time.sleep(rng.uniform(0.0, 0.02))
            reset(connection)
    return {status_of(url, "GET", "/healthz")}


@attack(200, 429)
def half_of_a_batch_that_hangs_up(url: str) -> set[int]:
    """Of forty requests that wait together, every second one is reset; the others must get their answers."""
    with connections(url, 40) as waiting:
        for connection in waiting:
            connection.sendall(request(LARGE))
        time.sleep(0.02)
        for connection in waiting[::2]:
            reset(connection)
        return {answer_on(connection) for connection in waiting[1::2]}


@attack(200, 0, quick=True)
def a_byte_now_and_then_between_requests(url: str) -> set[int]:
    """Twenty connections are kept alive with empty lines, and then used again."""
    with connections(url, 20) as waiting:
        for connection in waiting:
            connection.sendall(request())
        statuses = {answer_on(connection) for connection in waiting}
        for _ in range(10):
            for connection in waiting:
                connection.sendall(b"\r\n")
            time.sleep(0.05)
        for connection in waiting:
            connection.sendall(request())
        return statuses | {answer_on(connection) for connection in waiting}


@attack(200, 0, quick=True)
def clients_that_say_no_more_after_their_request(url: str) -> set[int]:
    """Thirty clients shut down their sending side once they have asked."""
    with connections(url, 30) as waiting:
        for connection in waiting:
            connection.sendall(request())
            connection.shutdown(socket.SHUT_WR)
        return {answer_on(connection) for connection in waiting}


@attack(200, quick=True)
def two_requests_of_which_the_second_is_broken_off(url: str) -> set[int]:
    statuses = set()
    for _ in range(50):
        with connection_to(url) as connection:
            connection.sendall(request() * 2)
            statuses.add(answer_on(connection))
            reset(connection)
    return statuses


@attack(200, 429, 0)
def connections_in_a_burst(url: str) -> set[int]:
    with connections(url, 200) as waiting:
        for connection in waiting:
            connection.sendall(request())
        return {answer_on(connection) for connection in waiting}


@attack(200, 429)
def a_small_window_for_a_large_answer(url: str) -> set[int]:
    """Ten clients with receive buffers of four kilobytes read a little at a time."""
    with connections(url, 10) as waiting:
        for connection in waiting:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request(RETURNED))
        statuses = [answer_on(connection) for connection in waiting]
        for _ in range(10):
            for connection, status in zip(waiting, statuses, strict=True):
                if status == 200:
                    connection.recv(1000)
            time.sleep(0.1)
    return set(statuses)


@attack(200, 403, quick=True)
def lines_that_stop_in_their_middle(url: str) -> set[int]:
    """Thirty uploads break off within a line: the lines before it are registered, the half line is not."""
    line = b'{"id":"whole","text":"man"}\n{"id":"half","te'
    with connections(url, 30) as waiting:
        for connection in waiting:
            connection.sendall(LINES + b"%x\r\n%b\r\n" % (len(line), line))
        time.sleep(0.3)
        for connection in waiting:
            reset(connection)
    half = {"query": "x", "candidates": [{"id": "half"}]}
    wait_until(lambda: post(url, half) == 404, within_s=20)  # 429 while the broken uploads still count as work
    return {status_of(url, "GET", "/healthz")}


@attack(200, 403, 408, 413, 0)
def lines_without_an_end(url: str) -> set[int]:
    """An upload goes on for three seconds as fast as it is read, and is then broken off."""
    line = b'{"id":"again","text":"man"}\n' * 100
    ends = time.monotonic() + 3.0
    with connection_to(url) as connection, contextlib.suppress(OSError):
        connection.sendall(LINES)
        while time.monotonic() < ends:
            connection.sendall(b"%x\r\n%b\r\n" % (len(line), line))
        reset(connection)
    return {status_of(url, "GET", "/healthz")}


@attack(200, 413, 429)
def a_long_request_and_short_ones_that_share_its_text(url: str) -> set[int]:
    """A text is tokenised once for all requests; a small one need not wait for a large one's other texts."""
    shared = "the man who was"
    large = {"query": "x", "candidates": [shared, "man " * 1_500_000, "she " * 1_500_000]}

    def ask_small() -> int:
        time.sleep(0.3)
        started = time.monotonic()
        status = max(post(url, {"query": "x", "candidates": [shared]}) for _ in range(5))
        assert time.monotonic() - started < 5.0
        return status

    return together([lambda: post(url, large), ask_small])


@attack(408)
def headers_that_never_end(url: str) -> set[int]:
    """The service closes the connection after a while."""
    with connection_to(url) as connection:
        connection.settimeout(20.0)
        connection.sendall(HEAD)
        return {answer_on(connection)}


@attack(403, 413, 0)
def lines_of_megabytes(url: str) -> set[int]:
    """Of a hundred and twenty lines of fifteen megabytes, the first is refused, and none is kept."""
    line = b'{"id":"large","text":"' + b"x" * 15_000_000 + b'"}\n'
    with connection_to(url) as connection:
        try:
            connection.sendall(LINES)
            for _ in range(120):
                connection.sendall(b"%x\r\n%b\r\n" % (len(line), line))
            connection.sendall(b"0\r\n\r\n")
        except OSError:
            return {0}
        return {answer_on(connection)}
