"""Regressions: what once took the service down, and needs a service of its own to test."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from chaos.table import JSON, NDJSON, ask, words
from support.models import save_bi_encoder
from support.redis_server import RedisServer, free_port
from support.server import running_service
from support.soak_pool import tiny_cross_encoder

pytestmark = pytest.mark.chaos

TESTS = Path(__file__).resolve().parents[1]
BODY = {"query": "who", "candidates": ["the man", "she"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_cross_encoder(tmp_path_factory.mktemp("findings") / "model"))


def test_a_store_of_empty_texts_is_bounded_by_the_memory_it_takes(model: str, tmp_path: Path) -> None:
    """Ids and the store's own structures count, not only the texts."""
    arguments = ["--model", model, "--candidate-store-bytes", "1000000"]
    lines = b"".join(b'{"id":"%d","text":""}\n' % number for number in range(50_000))
    with running_service(tmp_path, arguments=arguments) as service:
        answer = ask(service.url, "PUT", "/candidates", content=lines, headers=NDJSON)

    assert answer.status_code == httpx.codes.INSUFFICIENT_STORAGE


def test_a_hundred_and_fifty_thousand_candidates_are_stored_in_redis(
    model: str, server: RedisServer, tmp_path: Path
) -> None:
    """One body has all of them, and may take as long as Redis needs."""
    candidates = [{"id": str(number), "text": "man"} for number in range(150_000)]
    with running_service(tmp_path, arguments=["--model", model, "--redis-url", server.url]) as service:
        body = json.dumps({"candidates": candidates}).encode()
        answer = ask(service.url, "PUT", "/candidates", content=body, headers=JSON)

    assert (answer.status_code, answer.json().get("registered")) == (200, 150_000)


def test_an_id_that_a_request_repeats_is_read_once(model: str, server: RedisServer, tmp_path: Path) -> None:
    """A text of a megabyte, asked for a thousand times, must not fill Redis' memory with replies."""
    text = "man " * 250_000
    asked = {"query": "who", "candidates": [{"id": "large"}] * 1000, "top_n": 1}
    with running_service(tmp_path, arguments=["--model", model, "--redis-url", server.url]) as service:
        put = ask(service.url, "PUT", "/candidates", json={"candidates": [{"id": "large", "text": text}]})
        assert put.status_code == httpx.codes.OK
        ask(service.url, "POST", "/rerank", json=asked)

    assert server.do("INFO", "memory")["used_memory_peak"] < 100_000_000


def test_a_stream_that_fails_midway_says_how_far_it_came(model: str, tmp_path: Path) -> None:
    """The client need not send again the lines that are registered."""
    lines = b"".join(b'{"id":"%d","text":"%b"}\n' % (number, b"x" * 10_000) for number in range(1000))
    with running_service(tmp_path, arguments=["--model", model, "--candidate-store-bytes", "5000000"]) as service:
        answer = ask(service.url, "PUT", "/candidates", content=lines, headers=NDJSON)

    assert answer.status_code == httpx.codes.INSUFFICIENT_STORAGE
    assert re.search(r"the first [1-9]\d* lines are registered", answer.json()["message"])


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


def test_a_check_fails_where_redis_does_not_answer(tmp_path: Path) -> None:
    model = str(save_bi_encoder(tmp_path / "model"))
    url = f"redis://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "bandrank", "check", "--model", model, "--device", "cpu", "--redis-url", url]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BANDRANK_")}
    ended = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=180, check=False)

    assert ended.returncode == 1
    assert "does not answer" in ended.stdout + ended.stderr
