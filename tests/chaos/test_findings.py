"""Regressions: what once took the service down, and needs a service of its own to test."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from chaos.table import JSON, ask, words
from support.redis_server import RedisServer
from support.server import running_service
from support.soak_pool import tiny_cross_encoder

pytestmark = pytest.mark.chaos

TESTS = Path(__file__).resolve().parents[1]
BODY = {"query": "who", "candidates": ["the man", "she"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_cross_encoder(tmp_path_factory.mktemp("findings") / "model"))


def test_a_hundred_and_fifty_thousand_candidates_are_stored_in_redis(
    model: str, server: RedisServer, tmp_path: Path
) -> None:
    """One body has all of them, and may take as long as Redis needs."""
    candidates = [{"id": str(number), "text": "man"} for number in range(150_000)]
    with running_service(tmp_path, arguments=["--model", model, "--redis-url", server.url]) as service:
        body = json.dumps({"candidates": candidates}).encode()
        answer = ask(service.url, "PUT", "/candidates", content=body, headers=JSON)

    assert (answer.status_code, answer.json().get("registered")) == (200, 150_000)


def test_a_pause_of_the_machine_does_not_close_the_service(model: str, tmp_path: Path) -> None:
    """A pause of two seconds must not count as slow scoring, or the service would refuse later requests."""
    small = {"query": "who", "candidates": [words(40)] * 5}
    larger = {"query": "who", "candidates": [f"{number} {words(40)}" for number in range(500)]}
    stop = threading.Event()

    def keep_asking(url: str) -> None:
        while not stop.is_set():
            ask(url, "POST", "/rerank", json=small)

    arguments = ["--model", model, "--patience", "100"]  # no request is refused because others wait
    with running_service(tmp_path, arguments=arguments) as service, ThreadPoolExecutor(10) as clients:
        loads = [clients.submit(keep_asking, service.url) for _ in range(4)]
        answers = []
        for _ in range(8):  # not every pause comes in the middle of a batch
            time.sleep(0.5)
            service.process.send_signal(signal.SIGSTOP)
            time.sleep(2.0)
            service.process.send_signal(signal.SIGCONT)
            answers += [clients.submit(ask, service.url, "POST", "/rerank", json=larger) for _ in range(5)]
        stop.set()
        for each in loads:
            each.result()

    assert {answer.result().status_code for answer in answers} == {httpx.codes.OK}


def test_a_thread_that_dies_as_it_takes_a_batch_answers_it(model: str, tmp_path: Path) -> None:
    """The requests of the batch fail at once, not at their deadline, and the process exits with 1."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = ["--model", model, "--request-timeout-s", "30"]
    with running_service(
        tmp_path, module="support.dying_service", arguments=arguments, environment={"PYTHONPATH": path}
    ) as service:
        statuses = []
        while httpx.codes.OK in statuses or not statuses:
            statuses = [ask(service.url, "POST", "/rerank", json=BODY).status_code]
        assert statuses == [httpx.codes.INTERNAL_SERVER_ERROR]
        assert service.exit_status() == 1
