"""Slow, silent, greedy and too many clients on real connections: they are disconnected, and nobody else has to wait."""

import gc
import logging
import socket
import time
from contextlib import ExitStack

import httpx
import pytest
from support.listening import PATIENCE_S, ended_with, listening
from support.plain_http import get, post
from support.scorers import WatchedScorer, lookup
from support.serving import files_of
from support.tasks import wait_until
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from bandrank.api.connections import BoundedProtocol

HEAD = b"POST /rerank HTTP/1.1\r\nHost: bandrank\r\nContent-Length: %d\r\n\r\n"
BODY = b'{"query":"who","return_documents":true,"candidates":["man %b"]}'
PROBE = b"GET /healthz HTTP/1.1\r\nHost: bandrank\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b"408"),
        (b"POST /rerank HTT", b"408"),
        (b"POST /rerank HTTP/1.1\r\nHost: bandrank\r\n", b"408"),
        (HEAD % 100 + b'{"query":', b"408"),
    ],
    ids=["silence", "half a line", "half the headers", "half a body"],
)
def test_a_client_that_stops_halfway_is_ended(sent: bytes, status: bytes) -> None:
    """The client gets a 408 after a while, and probes are answered meanwhile."""
    with listening() as service, service.connection(sent) as connection:
        assert service.is_alive()
        assert ended_with(connection).startswith(b"HTTP/1.1 " + status)
        assert service.refused("slow_headers") + service.refused("slow_body") == 1


def test_a_client_that_drips_is_ended_too() -> None:
    """A byte now and then does not count as progress, neither in the headers nor in the body."""
    for start, rest in ((b"", b"POST /rerank HTTP/1.1\r\nA: " + b"a" * 500), (HEAD % 5000, b" " * 5000)):
        with listening() as service, service.connection(start) as connection:
            started = time.monotonic()
            try:
                for byte in rest:
                    connection.send(bytes([byte]))
                    time.sleep(0.05)
            except OSError:  # a reset or a broken pipe
                pass
            assert time.monotonic() - started < 6 * PATIENCE_S


@pytest.mark.parametrize(
    "head",
    [
        b"/healthz HTTP/1.1\r\nX-Long: " + b"a" * 200_000,
        b"/healthz HTTP/1.1\r\nX-Long: " + b"a" * 33_000,
        b"/healthz HTTP/1.1\r\n" + b"\r\n".join(b"X-%d: 1" % n for n in range(150)),
        b"/healthz HTTP/1.1\r\n" + b"a" * 100_000,
        b"/" + b"a" * 100_000 + b" HTTP/1.1",
    ],
    ids=["a long one", "one that comes at once", "many", "a long name", "a long first line"],
)
def test_headers_are_bounded(head: bytes) -> None:
    """Headers are limited in bytes and in number, before any of them is looked at."""
    with listening() as service:
        with service.connection(b"GET " + head + b"\r\n\r\n") as connection:
            assert ended_with(connection).startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        assert service.is_alive()


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\r\n\r\n", b"GET http://[ HTTP/1.1\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_is_counted_and_fills_no_log(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody can send bytes that are not HTTP, as fast as the service accepts connections."""
    with listening() as service:
        with service.connection(sent) as connection:
            assert ended_with(connection).startswith(b"HTTP/1.1 400 Bad Request")
        assert service.refused("malformed") == 1
        assert service.is_alive()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["kept alive", "closed"])
def test_an_answer_that_nobody_reads_is_dropped(more: bytes) -> None:
    """A client that asks for megabytes and reads none of them loses its connection."""
    body = BODY % (b"x" * 14_000_000)
    with listening() as service, service.connection() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall((HEAD % len(body)).replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n") + body)
        wait_until(lambda: service.refused("unread_answer"))
        assert service.is_alive()


def test_a_slow_answer_is_no_reason_to_end_a_connection() -> None:
    body = BODY % (b"x" * 3_000_000)
    with listening() as service, service.connection(HEAD % len(body) + body) as connection:
        received = b""
        started = time.monotonic()
        while len(received) < 3_000_000:
            received += connection.recv(200_000)
            time.sleep(0.05)
        assert time.monotonic() - started > PATIENCE_S
        assert received.startswith(b"HTTP/1.1 200")


def test_a_request_behind_others_is_not_too_slow() -> None:
    """Its headers began in the bytes of another request, and the rest is not read before the first answer."""
    body = BODY % b""
    slow = WatchedScorer(lookup(man=1.5), lambda _: time.sleep(3 * PATIENCE_S))
    with listening(files=[files_of(slow)]) as service:
        assert service.is_alive()  # it reads what follows as it comes
        with service.connection(HEAD % len(body) + body) as connection:
            for sent in (PROBE + PROBE[:9], PROBE[9:-2] + b"Connection: close\r\n\r\n"):
                time.sleep(PATIENCE_S / 4)
                connection.sendall(sent)
            assert ended_with(connection).count(b"HTTP/1.1 200 OK") == 3


def test_a_connection_kept_alive_is_used_again() -> None:
    """The pause between two requests may be longer than the patience with a slow client."""
    with listening() as service, service.client() as client:
        for _ in range(3):
            assert client.get("/healthz").status_code == httpx.codes.OK
            time.sleep(1.5 * PATIENCE_S)
        assert service.refused("slow_headers") == 0


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_is_answered_before_it_has_sent_all_hears_of_it(version: bytes) -> None:
    """Its connection ends with the answer, but is not reset while the client sends."""
    head = b"POST /nowhere HTTP/%b\r\nHost: bandrank\r\nConnection: close\r\nContent-Length: 20000000\r\n\r\n"
    with listening(patience_s=30) as service, service.connection(head % version) as connection:
        connection.sendall(bytes(20_000_000))
        assert ended_with(connection).startswith(b"HTTP/1.1 404")


def test_a_client_that_sends_on_and_on_after_its_answer_is_ended() -> None:
    """A connection that ends with the answer is read no longer than a slow client may take."""
    head = b"POST /nowhere HTTP/1.0\r\nContent-Length: 20000000\r\n\r\n"
    with listening() as service, service.connection(head) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 404")

        def send_on() -> None:
            for _ in range(2000):
                connection.sendall(bytes(1000))
                time.sleep(0.01)

        with pytest.raises(OSError, match=r"reset|pipe"):
            send_on()


def test_a_refusal_is_said_after_other_answers_too() -> None:
    with listening() as service, service.connection(PROBE) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(PROBE[:-2] + b"X: 1\r\n" * 150)
        assert b"HTTP/1.1 431" in ended_with(connection)


def test_no_refusal_is_written_into_an_answer() -> None:
    body = BODY % (b"x" * 14_000_000)
    with listening(patience_s=30) as service, service.connection(HEAD % len(body) + body) as connection:
        received = connection.recv(1000)
        connection.sendall(b"\0\r\n\r\n")
        wait_until(lambda: service.refused("malformed"))
        assert (received + ended_with(connection)).count(b"HTTP/1.1") == 1


def test_answers_of_a_drain_end_their_connections() -> None:
    """The last answer says `Connection: close`, even on a new connection; of two requests at once both are answered."""
    with listening() as running, running.connection(PROBE) as connection:
        assert b"connection: close" not in connection.recv(65536)
        running.connections.draining = True
        connection.sendall(2 * PROBE)
        first, second = ended_with(connection).split(b"HTTP/1.1 200 OK")[1:]
        with running.connection(PROBE) as another:
            only = ended_with(another)

    assert b"connection: close" not in first
    assert b"connection: close" in second
    assert only.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in only


def test_nothing_is_kept_of_a_connection_that_ended() -> None:
    """A connection that is kept in memory would be watched for ever."""

    def kept() -> bool:
        gc.collect()
        return any(type(each) is BoundedProtocol for each in gc.get_objects())

    with listening() as service:
        assert service.is_alive()
        wait_until(lambda: not kept())
        with service.connection(b"GET / HTTP/1.1\r\n\r\n") as reset:
            assert reset.recv(9)
        wait_until(lambda: not kept())


def test_nothing_is_kept_of_a_request_that_was_answered() -> None:
    """Its memory need not wait until garbage is collected."""
    with listening() as service, service.client() as client:
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                assert client.get("/healthz").status_code == httpx.codes.OK
            wait_until(lambda: sum(type(each) is RequestResponseCycle for each in gc.get_objects()) <= 1)
        finally:
            gc.enable()


def test_silent_connections_make_room_for_others() -> None:
    """The connection that is silent for longest is closed first, so that a hundred of them keep nobody out."""
    with listening(patience_s=30, max_connections=10) as service, ExitStack() as silent:
        first = silent.enter_context(service.connection())
        for _ in range(99):
            silent.enter_context(service.connection())
        answer = post(f"{service.url}/rerank", json={"query": "who", "candidates": ["man"]})

        assert answer.status_code == httpx.codes.OK
        assert service.refused("displaced") >= 95
        assert service.refused("too_many") == 0
        assert ended_with(first) == b""


def test_without_room_for_probes_a_connection_is_closed() -> None:
    """The connection is closed without an answer and counted; once another one has its answer, there is room again."""
    with listening(patience_s=30, max_connections=2, reserved=2) as service, ExitStack() as busy:
        first, _ = [busy.enter_context(service.connection(b"GET /healthz HTTP/1.1\r\n")) for _ in range(2)]
        with service.connection(b"GET /healthz HTTP/1.1\r\n") as refused:
            assert ended_with(refused) == b""
        first.sendall(b"Host: bandrank\r\nConnection: close\r\n\r\n")
        assert ended_with(first).startswith(b"HTTP/1.1 200")

        assert service.refused("too_many") == 1


def test_busy_connections_leave_room_for_probes() -> None:
    """If all connections of an address's share await answers, its next request gets a 503, but a probe is answered."""
    with listening(patience_s=30, max_connections=6) as service, ExitStack() as busy:
        for _ in range(3):
            busy.enter_context(service.connection(HEAD % 100 + b'{"query":'))
        refused = post(f"{service.url}/rerank", json={"query": "who", "candidates": ["man"]})

        assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert refused.json()["error_type"] == "too_many_connections"
        assert refused.headers["x-request-id"]
        assert service.is_alive()
        assert get(f"{service.url}/infinity/health").status_code == httpx.codes.OK
        assert service.refused("too_many") == 1
        assert service.refused("displaced") == 0
