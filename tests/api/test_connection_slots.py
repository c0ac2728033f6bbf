"""Connections from several addresses: those of one, be they busy, silent or done, never keep another address out."""

import socket
from contextlib import ExitStack, suppress

import pytest
from support.listening import Listening, ended_with, listening
from support.tasks import HANG_S

from bandrank.api.addresses import client_at

HEAD = b"POST /rerank HTTP/1.1\r\nHost: bandrank\r\nContent-Length: %d\r\n\r\n"
BODY = b'{"query":"who","candidates":["man"]}'
RERANK = HEAD % len(BODY) + BODY
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: bandrank\r\n\r\n"


def connect(service: Listening, sent: bytes = b"", *, source: str = "127.0.0.1") -> socket.socket:
    """A connection from the address `source`, on which `sent` was sent."""
    made = socket.create_connection(service.address, timeout=HANG_S, source_address=(source, 0))
    with suppress(ConnectionError):  # the service may have closed it already
        made.sendall(sent)
    return made


def test_busy_connections_of_one_address_leave_room_for_another() -> None:
    with listening(patience_s=5, max_connections=10, reserved=4) as service, ExitStack() as busy:
        greedy = [busy.enter_context(connect(service, HEAD % 100 + b'{"query":')) for _ in range(30)]
        for _ in range(2):
            with connect(service, RERANK, source="127.0.0.2") as other:
                assert other.recv(65536).startswith(b"HTTP/1.1 200 OK")
        answers = [ended_with(connection)[:12] for connection in greedy[5:]]

        assert answers.count(b"HTTP/1.1 503") >= 2  # on connections that only probes could have used
        assert set(answers) <= {b"HTTP/1.1 503", b""}


def test_silent_connections_of_one_address_end_none_of_another() -> None:
    """An address beyond its share loses its own connections, even if another one's has been silent for longer."""
    with listening(patience_s=30, max_connections=10) as service, ExitStack() as silent:
        older = silent.enter_context(connect(service, source="127.0.0.2"))
        connections = [silent.enter_context(connect(service)) for _ in range(50)]
        assert ended_with(connections[0]) == b""
        older.sendall(HEALTHZ)

        assert older.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_silent_connections_of_many_addresses_make_room_too() -> None:
    """If addresses with one connection each take all slots, the connection that is silent for longest is closed."""
    with listening(patience_s=30, max_connections=10) as service, ExitStack() as silent:
        first, *_ = [silent.enter_context(connect(service, source=f"127.0.1.{n}")) for n in range(1, 30)]
        with connect(service, HEALTHZ) as newcomer:
            assert newcomer.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert ended_with(first) == b""


def test_a_single_connection_is_served() -> None:
    """A service that allows only one open connection still serves it."""
    with listening(max_connections=1) as service, connect(service, RERANK) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_connection_that_was_answered_early_is_silent() -> None:
    """A connection that got its answer before all of its body had come must not count as busy for ever."""
    early = b"POST /nothing HTTP/1.1\r\nHost: bandrank\r\nContent-Length: 3\r\n\r\n"
    with listening(patience_s=30, max_connections=6) as service, ExitStack() as answered:
        for _ in range(3):
            connection = answered.enter_context(connect(service, early))
            assert connection.recv(65536).startswith(b"HTTP/1.1 404")
            connection.sendall(b"abc")
        with connect(service, RERANK) as newcomer:
            assert newcomer.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_connection_that_asks_for_a_web_socket_is_bounded_like_others() -> None:
    """The connection gets an answer over HTTP, and its slot is free once it has ended."""
    upgrade = (
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eHg=\r\n\r\n"
    )
    with listening(patience_s=30, max_connections=4) as service:
        for _ in range(20):
            with connect(service, HEALTHZ.removesuffix(b"\r\n") + upgrade) as connection:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert service.scrape().value("bandrank_connections") <= 4


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("10.0.0.1", 1), ("10.0.0.1", 2), True),
        (("10.0.0.1", 1), ("10.0.0.2", 1), False),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::ffff:2", 1, 0, 0), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), ("fe80::2", 1, 0, 3), True),
        (("::ffff:10.0.0.1", 1, 0, 0), ("10.0.0.1", 2), True),
        (("::ffff:10.0.0.1", 1, 0, 0), ("::ffff:10.0.0.2", 1, 0, 0), False),
        ("", None, True),
        ("", ("10.0.0.1", 1), False),
    ],
)
def test_whom_an_address_counts_for(one: object, other: object, *, same: bool) -> None:
    """An IPv4 address, mapped to IPv6 or not, is one client; so are the /64 of an IPv6 address and all Unix sockets."""
    assert (client_at(one) == client_at(other)) is same
