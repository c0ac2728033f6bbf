"""What only a real connection can show: a body of 50 MB, and clients that go away or only close their sending side."""

import contextlib
import http.client
import json
import logging
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.app import assert_error
from support.listening import Listening, listening
from support.scorers import Gate, WatchedScorer, lookup
from support.serving import files_of
from support.tasks import HANG_S, wait_until

BODY = json.dumps({"query": "who", "candidates": ["she", "man"], "raw_scores": True}).encode()
PROBE = b"GET /healthz HTTP/1.1\r\nHost: bandrank\r\n\r\n"
HEAD = b"POST /rerank HTTP/1.1\r\nHost: bandrank\r\nContent-Length: %d\r\n\r\n"


@dataclass(frozen=True)
class Gated(Listening):
    """A service that listens, and the gate before its scorer."""

    gate: Gate

    @contextlib.contextmanager
    def half_closed(self, sent: bytes) -> Iterator[socket.socket]:
        """A connection on which `sent` was sent, and whose sending side the client has closed."""
        with socket.create_connection(self.address, timeout=HANG_S) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            yield connection

    def wait_for(self, name: str, value: float, **labels: str) -> None:
        """Returns once a series has this value."""
        wait_until(lambda: self.scrape().value(name, **labels) == value)

    def assert_serves(self) -> None:
        """Asserts that a good request gets its scores."""
        self.gate.let_through()
        with self.client() as client:
            results = client.post("/rerank", content=BODY).json()["results"]
        assert [(result["index"], result["relevance_score"]) for result in results] == [(1, 1.5), (0, -2.0)]
        self.gate.wait_for_batch()


@contextlib.contextmanager
def gated(keep_alive_s: int = 600) -> Iterator[Gated]:
    """A service whose gate has let its self-test pass, with patience for clients that wait for the gate."""
    gate = Gate()
    files = [files_of(WatchedScorer(lookup(man=1.5, she=-2.0), gate))]
    with listening(files=files, patience_s=HANG_S, keep_alive_s=keep_alive_s) as service:
        gate.let_through()
        gate.wait_for_batch()
        yield Gated(service.address, service.trust, service.connections, gate)
        gate.let_through(100)


def answers_on(connection: socket.socket) -> list[tuple[int, bytes]]:
    """The status and body of every answer up to the end of a connection, without interim ones."""
    with connection.makefile("rb") as stream:
        answers = []
        while line := stream.readline():
            assert line.startswith(b"HTTP/1.1 ")
            headers = http.client.parse_headers(stream)
            if line != b"HTTP/1.1 100 Continue\r\n":
                answers.append((int(line.split()[1]), stream.read(int(headers["content-length"]))))
        return answers


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Asserts that nothing was logged that needs an operator's attention."""
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_body_of_50_mb_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """A client that sends its whole body first reads a 413, not a broken pipe, and its connection stays usable."""
    with gated() as running, running.client() as client:
        for _ in range(2):
            response = client.post("/rerank", content=b'{"query": "' + b"x" * 50_000_000)
            assert "16777216 bytes" in assert_error(response, 413, "input_too_large")
        running.assert_serves()
    assert_quiet(caplog)


@pytest.mark.parametrize("behind", [b"", PROBE], ids=["alone", "pipelined"])
def test_a_queued_client_that_goes_away_frees_its_room(behind: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Its task is dropped and counted, even if it sent another request; the one that is being scored is answered."""
    with gated() as running, socket.create_connection(running.address) as scored:
        scored.sendall(HEAD % len(BODY) + BODY)
        running.gate.wait_for_batch()
        with socket.create_connection(running.address) as impatient:
            impatient.sendall(HEAD % len(BODY) + BODY + behind)
            running.wait_for("bandrank_waiting_tasks", 1)
        running.wait_for("bandrank_dropped_tasks_total", 1, reason="cancelled")
        running.wait_for("bandrank_requests_total", 1, status="499")
        seen = running.scrape()
        assert seen.value("bandrank_waiting_tasks") == seen.value("bandrank_waiting_tokens") == 0
        assert seen.value("bandrank_request_seconds_count") == 1

        running.gate.let_through()
        assert scored.recv(65536).startswith(b"HTTP/1.1 200 OK")
        running.assert_serves()
    assert_quiet(caplog)


def test_a_client_that_goes_away_while_it_is_scored_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    with gated() as running:
        with socket.create_connection(running.address) as impatient:
            impatient.sendall(HEAD % len(BODY) + BODY)
            running.gate.wait_for_batch()
        running.wait_for("bandrank_requests_total", 1, status="499")
        running.gate.let_through()
        running.assert_serves()
    assert_quiet(caplog)


def test_a_client_that_goes_away_within_its_body_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The request counts as 499, and nothing of it reaches the scorer."""
    with gated() as running:
        with socket.create_connection(running.address) as impatient:
            impatient.sendall(HEAD % len(BODY) + BODY[:10])
        running.wait_for("bandrank_requests_total", 1, status="499")
        running.assert_serves()
        running.wait_for("bandrank_requests_total", 2)
    assert_quiet(caplog)


def test_several_requests_on_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """The connection is kept alive, also after errors."""
    with gated() as running, running.client() as client:
        running.gate.let_through(3)
        bodies = (BODY, b"{", BODY, b'{"query": ""}', BODY)
        statuses = [client.post("/rerank", content=body).status_code for body in bodies]

    assert statuses == [200, 422, 200, 422, 200]
    assert_quiet(caplog)


def test_an_offer_of_another_protocol_may_be_followed_by_a_long_wait() -> None:
    """Its connection is not taken for an idle one, which would be closed before the answer."""
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with gated(keep_alive_s=0) as running, socket.create_connection(running.address) as connection:
        connection.sendall((HEAD % len(BODY))[:-2] + offer + BODY)
        running.gate.wait_for_batch()
        running.gate.let_through()
        assert [status for status, _ in answers_on(connection)] == [200]


def test_a_client_that_sends_no_more_gets_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets all of a small answer and of one of megabytes, and then the connection is closed."""
    text = "man " + "x" * 3_000_000
    large = json.dumps({"query": "who", "candidates": [text], "return_documents": True}).encode()
    with gated() as running:
        with running.half_closed(PROBE) as connection:
            assert answers_on(connection) == [(200, b'{"status":"alive"}')]
        running.gate.let_through()
        with running.half_closed(HEAD % len(large) + large) as connection:
            ((status, body),) = answers_on(connection)
            assert status == 200
            assert json.loads(body)["results"][0]["document"]["text"] == text
    assert_quiet(caplog)


def test_a_client_that_sends_no_more_may_wait(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a queued task nor a batch of such a client is dropped while others come and go."""
    with gated() as running, running.half_closed(HEAD % len(BODY) + BODY) as scored:
        running.gate.wait_for_batch()
        with running.half_closed(HEAD % len(BODY) + BODY) as queued:
            running.wait_for("bandrank_waiting_tasks", 1)
            with socket.create_connection(running.address) as impatient:
                impatient.sendall(HEAD % len(BODY) + BODY)
                running.wait_for("bandrank_waiting_tasks", 2)
            running.wait_for("bandrank_requests_total", 1, status="499")
            running.gate.let_through(2)

            assert [status for status, _ in answers_on(scored) + answers_on(queued)] == [200, 200]
    assert_quiet(caplog)


def test_a_client_that_sends_no_more_and_then_goes_away_frees_its_room(caplog: pytest.LogCaptureFixture) -> None:
    """The service notices this although it neither reads from the connection nor writes to it."""
    with gated() as running, socket.create_connection(running.address) as scored:
        scored.sendall(HEAD % len(BODY) + BODY)
        running.gate.wait_for_batch()
        with running.half_closed(HEAD % len(BODY) + BODY) as impatient:
            running.wait_for("bandrank_waiting_tasks", 1)
            assert impatient.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            impatient.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset at its close
        running.wait_for("bandrank_dropped_tasks_total", 1, reason="cancelled")
        running.wait_for("bandrank_requests_total", 1, status="499")
    assert_quiet(caplog)


def test_requests_in_a_row_are_all_answered_though_the_client_sends_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """The answers come in order, and then the connection is closed."""
    request = HEAD % len(BODY) + BODY
    with gated() as running:
        running.gate.let_through(2)
        with running.half_closed(request + b"GET /nothing HTTP/1.1\r\nHost: bandrank\r\n\r\n" + request) as connection:
            assert [status for status, _ in answers_on(connection)] == [200, 404, 200]
    assert_quiet(caplog)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: bandrank\r\n", HEAD % len(BODY) + BODY[:10]],
    ids=["nothing", "half a line", "half the headers", "half a body"],
)
def test_a_client_that_sends_no_more_than_half_a_request_is_closed(sent: bytes) -> None:
    """The connection is closed at once, without an answer."""
    with gated() as running:
        with running.half_closed(sent) as connection:
            assert connection.recv(100) == b""
        running.assert_serves()


def test_a_client_of_http_1_0_that_sends_no_more_is_closed() -> None:
    """Such a client may not understand an interim answer, without which it looks like one that went away."""
    request = (HEAD % len(BODY)).replace(b"HTTP/1.1", b"HTTP/1.0") + BODY
    with gated() as running:
        with running.half_closed(request) as connection:
            assert connection.recv(100) == b""
        running.wait_for("bandrank_requests_total", 1, status="499")
