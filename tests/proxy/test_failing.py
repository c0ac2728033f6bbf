"""Failures of the re-ranking, and of clients, cost nothing but the order of the hits."""

import gc
import json
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from support.poison import dies, fails
from support.proxied import Proxied, proxied
from support.scorers import Gate, WatchedScorer, encoded_lookup, lookup
from support.scripted_server import ScriptedServer, scripted_server
from support.search_engine import SearchEngine
from support.tasks import HANG_S, wait_until

from bandrank.proxy.app import HEALTH, READY

DOCUMENTS = ['{"title":"man"}', '{"title":"he"}', '{"title":"she"}']
POISONED = [*DOCUMENTS, '{"title":"p"}']
BODY: dict[str, Any] = {"query": {"match": {"title": "who"}}, "size": 2, "_source": False}
HEADERS = {"x-rerank": "title"}


@pytest.fixture(scope="module")
def odd_engine() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


@pytest.fixture(scope="module")
def odd_proxy(odd_engine: ScriptedServer) -> Iterator[Proxied]:
    with proxied(odd_engine.url) as running:
        yield running


@pytest.fixture(autouse=True)
def _as_new(engine: SearchEngine) -> None:
    engine.seen.clear()
    engine.documents = DOCUMENTS
    engine.max_window, engine.status, engine.always_gzip = 10_000, 200, False


def search(proxy: Proxied, **headers: str) -> httpx.Response:
    with proxy.client() as client:
        return client.post("/docs/_search", json=BODY, headers=HEADERS | headers)


@contextmanager
def gated(engine: SearchEngine, **settings: Any) -> Iterator[tuple[Proxied, Gate]]:
    """A proxy and the gate before its model, which its self-test has passed and all pass in the end."""
    gate = Gate()
    gate.let_through()
    scorer = WatchedScorer(lookup(man=1.0), gate)
    with proxied(engine.url, scorer=scorer, **{"proxy_budget_ms": 60_000} | settings) as proxy:
        try:
            yield proxy, gate
        finally:
            gate.let_through(10)


@contextmanager
def asking(proxy: Proxied, body: str, headers: dict[str, str]) -> Iterator[None]:
    """A client that sends a search and resets its connection in the end."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(proxy.address, timeout=HANG_S) as connection:
        head = f"POST /docs/_search HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        yield
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def assert_in_the_order_of_the_engine(response: httpx.Response, reason: str) -> None:
    """The client gets its page in the engine's order, without any field that it did not ask for, and the reason."""
    assert response.status_code == 200
    assert response.headers["x-rerank-status"] == f"failed; reason={reason}"
    hits = response.json()["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == ["0", "1"]
    assert all(hit.keys() == {"_index", "_id", "_score"} for hit in hits)


def test_a_re_ranker_that_fails_costs_nothing_but_the_order(engine: SearchEngine) -> None:
    """Re-ranking fails because of what the client asks for, or because of an error in the model."""
    with proxied(engine.url, scorer=WatchedScorer(lookup(man=1.0), fails)) as proxy:
        assert_in_the_order_of_the_engine(search(proxy, **{"x-rerank": "title; model=other"}), "unknown_model")
        assert_in_the_order_of_the_engine(search(proxy, **{"x-rerank": "title; strategy=odd"}), "unknown_strategy")
        assert_in_the_order_of_the_engine(search(proxy, **{"x-rerank": "summary"}), "no_text")
        engine.documents = POISONED
        assert_in_the_order_of_the_engine(search(proxy), "scoring_failed")
        proxy.wait_for_count("proxy_requests", 4, outcome="failed")
        assert proxy.count("proxy_unranked", reason="scoring_failed") == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_re_ranker_costs_nothing_but_the_order(engine: SearchEngine) -> None:
    """The proxy still answers searches; its health check fails, and its readiness probe names the dead re-ranker."""
    engine.documents = POISONED
    with proxied(engine.url, scorer=WatchedScorer(lookup(man=1.0), dies)) as proxy, proxy.client() as client:
        assert client.get(HEALTH).status_code == client.get(READY).status_code == 200
        reasons = {search(proxy).headers["x-rerank-status"] for _ in range(3)}
        assert all(reason.startswith("failed; reason=") for reason in reasons)
        assert client.get("/docs").status_code == 200
        assert proxy.value("ready") == 0  # even before anybody asks for readiness
        assert client.get(HEALTH).status_code == 503
        ready = client.get(READY)
        assert ready.status_code == 200
        assert "dead" in ready.json()["reranking"]


def test_a_hung_re_ranker_costs_nothing_but_the_order(engine: SearchEngine) -> None:
    """The proxy keeps running, and later searches do not wait for the re-ranker."""
    with gated(engine, hang_timeout_s=0.1) as (proxy, gate):
        assert_in_the_order_of_the_engine(search(proxy), "scoring_failed")
        with proxy.client() as client:
            assert client.get(HEALTH).status_code == 503
            assert proxy.value("ready") == 0
        assert search(proxy).headers["x-rerank-status"].startswith("failed; reason=")
        gate.let_through(10)
        proxy.service.models.default.engine.worker.join()
        assert proxy.value("ready") == 0  # a worker that was given up stays so, even if it wakes up


def test_a_bug_in_the_re_ranking_costs_nothing_but_the_order(
    proxy: Proxied, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged; the client is told only that it is internal."""
    monkeypatch.setattr("bandrank.proxy.reordering.answer", wrong)
    assert_in_the_order_of_the_engine(search(proxy), "internal")
    assert "something secret" in caplog.text


def test_a_bug_in_the_proxy_is_500(
    proxy: Proxied, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer has the body of every error, and only the log has the cause."""
    monkeypatch.setattr("bandrank.proxy.forwarding.indices_of", wrong)
    response = search(proxy)

    assert (response.status_code, response.json()["error_type"]) == (500, "internal")
    assert "secret" not in response.text
    assert "something secret" in caplog.text


def wrong(*_: object) -> None:
    raise RuntimeError("something secret")


def test_a_re_ranker_that_is_too_slow_is_given_up(engine: SearchEngine) -> None:
    with gated(engine) as (proxy, _):
        assert_in_the_order_of_the_engine(search(proxy, **{"x-rerank": "title; budget_ms=50"}), "deadline_exceeded")


def test_a_cascade_that_is_cut_short_is_marked(engine: SearchEngine) -> None:
    """The accurate stage does not answer within the budget, so the fast stage orders the hits."""
    with gated(engine, fast=encoded_lookup(she=2.0, he=1.0, man=-1.0)) as (proxy, _):
        response = search(proxy, **{"x-rerank": "title; strategy=cascade; budget_ms=2000"})

    assert response.headers["x-rerank-status"] == "reranked; hits=3; degraded"
    assert [hit["_id"] for hit in response.json()["hits"]["hits"]] == ["2", "1"]


def test_a_window_that_the_engine_refuses(proxy: Proxied, engine: SearchEngine) -> None:
    """The proxy then sends the client's own search."""
    engine.max_window = 20
    assert_in_the_order_of_the_engine(search(proxy), "engine_refused")

    assert [asked.params for asked in engine.seen] == [{"from": "0", "size": "100"}, {}]
    assert json.loads(engine.seen[1].body) == BODY


def test_an_answer_that_is_too_large(engine: SearchEngine) -> None:
    with proxied(engine.url, proxy_max_response_bytes=200) as proxy:
        assert_in_the_order_of_the_engine(search(proxy), "large_answer")


def test_an_answer_that_is_compressed_though_nobody_asked(proxy: Proxied, engine: SearchEngine) -> None:
    """The proxy then sends the client's own search, whose answer the client can decompress if it asked for that."""
    engine.always_gzip = True
    assert_in_the_order_of_the_engine(search(proxy), "unreadable_answer")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"hits":[]}',
        b'{"hits":{}}',
        b'{"hits":{"hits":{}}}',
        b'{"hits":{"hits":[1]}}',
        b'{"hits":{"hits":[{"_id":"1"}',
        b'{"hits":{"hits":[{"a":1,"a":2}]}}',
        b'{"hits":{"hits":[{"_source":NaN}]}}',
        b'{"hits":{"hits":[{"fields":[]}]}}',
        b'{"hits":{"hits":[]}} {}',
        b"\xff\xfe",
        b'{"hits":{"hits":[{"_source":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}}",
        b'{"hits":{"hits":[' + b",".join([b"{}"] * 101) + b"]}}",
    ],
)
def test_an_answer_that_cannot_be_understood(odd_proxy: Proxied, odd_engine: ScriptedServer, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    odd_engine.answer = head + body
    response = search(odd_proxy)

    assert response.content == body
    assert response.headers["x-rerank-status"] == "failed; reason=unreadable_answer"


def test_an_unreadable_answer_is_not_kept() -> None:
    size = 1 << 22
    head = b"HTTP/1.1 200 OK\r\ncontent-type:application/json\r\ncontent-length:%d\r\n\r\n"
    with scripted_server() as server, proxied(server.url) as proxy, socket.create_connection(proxy.address) as client:
        server.others[b"?"] = head % size + bytes(size)
        tracemalloc.start()
        client.send(b"GET /_search HTTP/1.1\r\nx-rerank: a\r\nx-rerank-query: b\r\n\r\n")
        wait_until(lambda: len(server.got) == 2)
        assert tracemalloc.get_traced_memory()[0] < size
    tracemalloc.stop()


@contextmanager
def let_go(size: int) -> Iterator[bytes]:
    """A search of `size` bytes, of which less is left soon, without a collection of reference cycles."""
    body = json.dumps(BODY | {"ext": "x" * size})
    head = f"POST /docs/_search HTTP/1.1\r\nx-rerank: title\r\ncontent-length: {len(body)}\r\n\r\n"
    request = (head + body).encode()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield request
        wait_until(lambda: tracemalloc.get_traced_memory()[0] < size, within_s=5)
    finally:
        tracemalloc.stop()
        gc.enable()


def test_a_search_that_the_engine_fails_is_not_kept() -> None:
    """Neither is what came of the engine's answer before it stopped."""
    size = 1 << 20
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with scripted_server() as server, proxied(server.url, proxy_timeout_s=0.4) as proxy:
        server.others[b"?"] = head % (2 * size) + bytes(size)
        with let_go(size) as request:
            assert b" 504 " in proxy.send(request)
            server.got.clear()


def test_a_search_whose_hits_cannot_be_scored_is_not_kept(engine: SearchEngine) -> None:
    engine.documents = POISONED[-1:]
    with proxied(engine.url, scorer=WatchedScorer(lookup(), fails)) as proxy, let_go(1 << 20) as request:
        assert b"reason=scoring_failed" in proxy.send(request)
        engine.seen.clear()


@pytest.mark.parametrize("headers", [{}, HEADERS])
def test_a_client_that_hangs_up_cancels_its_request(headers: dict[str, str]) -> None:
    """The engine notices at once that the client is gone, and may stop the search."""
    with scripted_server(held=True) as server, proxied(server.url) as proxy:
        with asking(proxy, json.dumps(BODY), headers):
            assert server.arrived.wait(HANG_S)
        assert server.hung_up.wait(HANG_S)


def held_by(proxy: Proxied) -> float:
    """The bytes that the proxy's requests in flight hold."""
    held = proxy.service.metrics.registry.get_sample_value("bandrank_memory_in_flight_bytes")
    assert held is not None
    return held


def test_a_client_that_hangs_up_while_its_hits_are_ranked(engine: SearchEngine) -> None:
    """The request's tasks leave the queue, and its memory is freed."""
    with gated(engine) as (proxy, gate):
        with asking(proxy, json.dumps(BODY), HEADERS):
            gate.wait_for_batch()  # the batch of the self-test
            gate.wait_for_batch()
            assert held_by(proxy) > 0
        wait_until(lambda: held_by(proxy) == 0)


@pytest.mark.parametrize("terms", [[0] * 1_400_000, dict.fromkeys(range(70_000), "")], ids=["values", "fields"])
def test_a_search_with_too_many_values_passes_through(proxy: Proxied, engine: SearchEngine, terms: Any) -> None:
    """The proxy counts the values and fields in a body before it reads them."""
    body = json.dumps(BODY | {"terms": terms}).replace(", ", ",")
    with proxy.client() as client:
        response = client.post("/docs/_search", content=body, headers=HEADERS)

    assert response.headers["x-rerank-status"] == "skipped; reason=large_request"
    assert len(engine.seen[0].body) == len(body)


def test_what_is_kept_of_a_request_is_counted() -> None:
    """The body counts as memory in flight even if the request passes through, since the proxy sends it from memory."""
    body = json.dumps(BODY | {"sort": ["date"]}) + " " * 100_000
    with scripted_server(held=True) as server, proxied(server.url) as proxy:
        with asking(proxy, body, HEADERS):
            assert server.arrived.wait(HANG_S)
            held = held_by(proxy)
        assert server.hung_up.wait(HANG_S)

    assert held > 100_000


def test_a_client_with_no_memory_left_gets_the_order_of_the_engine(engine: SearchEngine) -> None:
    with proxied(engine.url, max_in_flight_bytes=100) as proxy:
        assert_in_the_order_of_the_engine(search(proxy), "input_too_large")


def test_a_search_that_is_too_large_to_be_read_passes_through(engine: SearchEngine) -> None:
    """The engine gets the whole body, even though the proxy had already read part of it."""
    with proxied(engine.url, max_body_bytes=40) as proxy:
        response = search(proxy)

    assert response.headers["x-rerank-status"] == "skipped; reason=large_request"
    assert json.loads(engine.seen[0].body) == BODY
