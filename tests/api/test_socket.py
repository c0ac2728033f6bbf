"""What only a real connection can show: a body of 50 MB, and clients that go away."""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import uvicorn
from support.app import assert_error
from support.scorers import Gate, WatchedScorer, lookup
from support.server import Scrape
from support.serving import files_of
from support.tasks import HANG_S

from bandrank.api.app import create_app
from bandrank.api.service import Service
from bandrank.serving import assemble
from bandrank.settings import Settings

BODY = json.dumps({"query": "who", "candidates": ["she", "man"], "raw_scores": True}).encode()
HEAD = b"POST /rerank HTTP/1.1\r\nHost: bandrank\r\nContent-Length: %d\r\n\r\n"


@dataclass(frozen=True)
class Listening:
    """A service that listens, and the gate before its scorer."""

    address: tuple[str, int]
    gate: Gate

    def client(self) -> httpx.Client:
        """A client with a separate connection."""
        host, port = self.address
        return httpx.Client(base_url=f"http://{host}:{port}", timeout=HANG_S, trust_env=False)

    def scrape(self) -> Scrape:
        """The current metrics."""
        with self.client() as client:
            return Scrape(client.get("/metrics").text)

    def wait_for(self, name: str, value: float, **labels: str) -> None:
        """Polls until a series has this value. Raises TimeoutError if it never does."""
        for _ in range(10_000):
            if self.scrape().value(name, **labels) == value:
                return
        raise TimeoutError(f"{name} is never {value}")

    def assert_serves(self) -> None:
        """A good request gets its scores."""
        self.gate.let_through()
        with self.client() as client:
            results = client.post("/rerank", content=BODY).json()["results"]
        assert [(result["index"], result["relevance_score"]) for result in results] == [(1, 1.5), (0, -2.0)]
        self.gate.wait_for_batch()


@contextlib.contextmanager
def listening() -> Iterator[Listening]:
    """The application behind uvicorn, in a thread of this process, on a free port of the loopback device."""
    gate = Gate()
    settings = Settings(device="cpu")
    service = Service(assemble([files_of(WatchedScorer(lookup(man=1.5, she=-2.0), gate))], settings), settings)
    server = uvicorn.Server(uvicorn.Config(create_app(service), log_config=None, access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        gate.let_through()
        gate.wait_for_batch()  # the self-test of the start
        yield Listening(listener.getsockname(), gate)
        server.should_exit = True
        gate.let_through(100)
        thread.join(HANG_S)
    assert not thread.is_alive()


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was logged that needs an operator's attention."""
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_body_of_50_mb_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """The client, which sends all of it, reads 413 instead of a broken pipe, and the connection stays usable."""
    with listening() as running, running.client() as client:
        for _ in range(2):
            response = client.post("/rerank", content=b'{"query": "' + b"x" * 50_000_000)
            assert "16777216 bytes" in assert_error(response, 413, "input_too_large")
        running.assert_serves()
    assert_quiet(caplog)


def test_a_queued_client_that_goes_away_frees_its_room(caplog: pytest.LogCaptureFixture) -> None:
    """Its task is dropped and counted; the request that is being scored is answered."""
    with listening() as running, socket.create_connection(running.address) as scored:
        scored.sendall(HEAD % len(BODY) + BODY)
        running.gate.wait_for_batch()
        with socket.create_connection(running.address) as impatient:
            impatient.sendall(HEAD % len(BODY) + BODY)
            running.wait_for("bandrank_waiting_tasks", 1)
        running.wait_for("bandrank_dropped_tasks_total", 1, reason="cancelled")
        running.wait_for("bandrank_requests_total", 1, status="499")
        assert running.scrape().value("bandrank_waiting_tasks") == 0

        running.gate.let_through()
        assert scored.recv(65536).startswith(b"HTTP/1.1 200 OK")
        running.assert_serves()
    assert_quiet(caplog)


def test_a_client_that_goes_away_while_it_is_scored_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Its scores are discarded."""
    with listening() as running:
        with socket.create_connection(running.address) as impatient:
            impatient.sendall(HEAD % len(BODY) + BODY)
            running.gate.wait_for_batch()
        running.wait_for("bandrank_requests_total", 1, status="499")
        running.gate.let_through()
        running.assert_serves()
    assert_quiet(caplog)


def test_a_client_that_goes_away_within_its_body_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """It counts as 499, and nothing of it reaches the scorer."""
    with listening() as running:
        with socket.create_connection(running.address) as impatient:
            impatient.sendall(HEAD % len(BODY) + BODY[:10])
        running.wait_for("bandrank_requests_total", 1, status="499")
        running.assert_serves()
        assert running.scrape().value("bandrank_requests_total") == 2
    assert_quiet(caplog)


def test_several_requests_on_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """The connection is kept alive, also after errors."""
    with listening() as running, running.client() as client:
        running.gate.let_through(3)
        bodies = (BODY, b"{", BODY, b'{"query": ""}', BODY)
        statuses = [client.post("/rerank", content=body).status_code for body in bodies]

    assert statuses == [200, 422, 200, 422, 200]
    assert_quiet(caplog)
