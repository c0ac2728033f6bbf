"""The service as a process: how it stops."""

import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event

import httpx
import pytest
from support.app import assert_error
from support.gated_service import DIE
from support.gates import gated_service
from support.models import save_cross_encoder
from support.plain_http import get
from support.scorers import lookup
from support.server import running_service
from support.serving import files_of
from support.tasks import HANG_S, wait_until

from bandrank.api.draining import DrainingServer
from bandrank.commands import serve
from bandrank.settings import Settings
from bandrank.stops import STOPS


def refuses(address: str) -> bool:
    """Whether nobody listens at an address."""
    url = httpx.URL(address)
    try:
        socket.create_connection((url.host, url.port or 0), timeout=HANG_S).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was about to be accepted when the listener closed
        return False
    return False


def test_sigterm_answers_what_was_admitted_and_takes_no_more(tmp_path: Path) -> None:
    """At SIGTERM one request is being scored, two wait, and one is within its headers: all are answered, and the exit
    code is 0. An endless upload ends with 503.
    """
    begun = Event()

    def lines() -> Iterator[bytes]:
        for number in count():
            yield b'{"id": "%d", "text": "man"}\n' % number
            if number == 1000:
                begun.set()

    with gated_service(tmp_path) as gated, ThreadPoolExecutor(4) as clients, contextlib.ExitStack() as at_end:
        request = {"headers": {"content-type": "application/x-ndjson"}, "timeout": HANG_S, "trust_env": False}
        upload = clients.submit(httpx.put, f"{gated.service.url}/candidates", content=lines(), **request)
        assert begun.wait(HANG_S)
        answers = [clients.submit(gated.rerank)]
        gated.wait_for_batch()
        answers += [clients.submit(gated.rerank) for _ in range(2)]
        url = httpx.URL(gated.service.url)
        begun_late = at_end.enter_context(socket.create_connection((url.host, url.port or 0), timeout=HANG_S))
        begun_late.sendall(b"GET /healthz HT")
        wait_until(lambda: gated.waiting_tasks() == 2)
        gated.service.terminate()
        wait_until(lambda: refuses(gated.service.url))
        begun_late.sendall(b"TP/1.1\r\n\r\n")
        assert begun_late.recv(100).startswith(b"HTTP/1.1 200")
        assert_error(upload.result(HANG_S), 503, "not_ready")
        assert not any(answer.done() for answer in answers)
        gated.let_through(batches=3)

        for answer in answers:
            results = answer.result(HANG_S).json()["results"]
            assert [(result["index"], result["relevance_score"]) for result in results] == [(1, 1.5), (0, -2.0)]
        assert gated.service.exit_status(HANG_S) == 0
    assert "Traceback" not in gated.service.log.read_text()


def test_sigterm_begins_with_a_drain(tmp_path: Path) -> None:
    """/readyz fails while the service still takes and answers requests; a second signal ends that at once, with 0."""
    with gated_service(tmp_path, "--drain-s", "3600") as gated, ThreadPoolExecutor(1) as client:
        gated.service.terminate()
        wait_until(lambda: gated.get("/readyz").status_code == httpx.codes.SERVICE_UNAVAILABLE)
        refusal = gated.get("/readyz")
        assert "the service is stopping" in refusal.text
        assert refusal.headers["connection"] == "close"
        assert gated.get("/healthz").status_code == httpx.codes.OK
        answer = client.submit(gated.rerank)
        gated.wait_for_batch()
        gated.service.terminate()
        wait_until(lambda: refuses(gated.service.url))
        gated.let_through()

        assert answer.result(HANG_S).status_code == httpx.codes.OK
        assert gated.service.exit_status(HANG_S) == 0


def test_a_dead_scoring_thread_ends_the_process(tmp_path: Path) -> None:
    """Every client gets an error, then the process ends with exit code 1 instead of hanging."""
    with gated_service(tmp_path) as gated, ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(gated.rerank)]
        gated.wait_for_batch()
        answers.append(clients.submit(gated.rerank))
        wait_until(lambda: gated.waiting_tasks() == 1)
        gated.let_through(DIE)

        for answer in answers:
            assert answer.result(HANG_S).json()["error_type"] == "scoring_failed"
        assert gated.service.exit_status(HANG_S) == 1
    assert "the scoring thread died" in gated.service.log.read_text()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """The exit code and the log of a service with a short drain and a log in JSON, after odd requests and SIGTERM."""
    folder = tmp_path_factory.mktemp("ended")
    arguments = ["--model", str(save_cross_encoder(folder / "model")), "--device", "cpu"]
    arguments += ["--drain-s", "0.5", "--log-format", "json", "--access-log", "true"]
    with running_service(folder, arguments=arguments) as service:
        url = httpx.URL(service.url)
        get(f"{url}/a%0Ab?token=secret", headers={"X-Request-Id": "mine"})
        with socket.create_connection((url.host, url.port or 0), timeout=HANG_S) as connection:
            connection.sendall(b"NO HTTP\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
        service.terminate()
        return service.exit_status(HANG_S), service.log.read_text()


def test_a_drain_ends_by_itself(ended: tuple[int, str]) -> None:
    status, log = ended

    assert status == 0
    assert "/readyz fails, requests are still answered" in log


def test_every_line_of_the_log_is_json_where_that_is_wanted(ended: tuple[int, str]) -> None:
    """The lines of uvicorn and of the access log are JSON too, and odd requests break none of them."""
    _, log = ended
    records = [json.loads(line) for line in log.splitlines()]

    assert {record["logger"] for record in records} >= {
        "bandrank",
        "bandrank.api.app",
        "uvicorn.error",
        "bandrank.access",
    }
    (mine,) = [record for record in records if record.get("request_id") == "mine"]
    assert (mine["method"], mine["path"], mine["status"], mine["client"]) == ("GET", "/a\nb", 404, "127.0.0.1")
    assert "secret" not in log


@pytest.mark.slow
def test_a_hung_scoring_thread_fails_the_probes_and_ends_the_process(tmp_path: Path) -> None:
    """The exit code is 1, a few seconds after the batch began to hang; a thread cannot be stopped from outside."""
    with gated_service(tmp_path, "--hang-timeout-s", "1", "--request-timeout-s", "0.5") as gated:
        assert gated.rerank().status_code == httpx.codes.GATEWAY_TIMEOUT
        statuses = set()
        while gated.service.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                statuses.add(gated.get("/healthz").status_code)
            time.sleep(0.1)

        assert statuses == {httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE}
        assert gated.service.exit_status() == 1
        assert "hung" in gated.service.log.read_text()


def test_threads_take_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it serves, a thread in Python code lets others go on after a fifth of Python's own interval."""
    before, handlers = sys.getswitchinterval(), {number: signal.getsignal(number) for number in STOPS}
    seen: list[float] = []
    monkeypatch.setattr(DrainingServer, "run", lambda _: seen.append(sys.getswitchinterval()))
    try:
        serve([files_of(lookup(man=1.5))], Settings(device="cpu"))
    finally:
        sys.setswitchinterval(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    assert seen == [pytest.approx(before / 5)]
