"""What a client gets when the search engine fails the proxy's deeper search, the client's own search, or both."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from support.proxied import Proxied, proxied
from support.scripted_server import ScriptedServer, body_of, scripted_server
from support.search_engine import SearchEngine
from support.tasks import HANG_S

from bandrank.proxy.app import READY

BODY = {"query": {"match": {"title": "who"}}, "size": 1}
HEADERS = {"x-rerank": "title"}
HITS = SearchEngine(['{"title":"man"}', '{"title":"he"}']).search(BODY, {})[1]
DEEPER = b"size=100"
BROKEN = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{"
SHARD_REFUSED = HITS.replace(
    b'"failed":0',
    b'"failed":1,"failures":[{"shard":0,"index":"old","reason":{"type":"fetch_phase_execution_exception",'
    b'"caused_by":{"type":"illegal_argument_exception","reason":"_source is disabled"}}}]',
)
TRIPPED = b'{"error":{"type":"circuit_breaking_exception","reason":"Data too large"},"status":429}'


def answer(status: int, body: bytes) -> bytes:
    head = b"HTTP/1.1 %d Any\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _as_new(engine: ScriptedServer) -> None:
    engine.got.clear()
    engine.others.clear()
    engine.answer = answer(200, HITS)


def search(proxy: Proxied, **headers: str) -> httpx.Response:
    with proxy.client() as client:
        return client.post("/docs/_search", json=BODY, headers=HEADERS | headers)


def assert_the_clients_own(response: httpx.Response, engine: ScriptedServer, reason: str) -> None:
    """Checks that the client got the engine's hits as they were, by its own search, sent once and unchanged."""
    assert (response.status_code, response.content) == (200, HITS)
    assert response.headers["x-rerank-status"] == f"failed; reason={reason}"
    deeper, own = engine.got
    assert DEEPER in deeper
    assert own.startswith(b"POST /docs/_search HTTP/1.1\r\n")
    assert json.loads(body_of(own)) == BODY


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (answer(429, TRIPPED), "engine_failed"),
        (answer(500, b"{}"), "engine_failed"),
        (answer(503, b"{}"), "engine_failed"),
        (answer(504, b"{}"), "engine_failed"),
        (answer(400, b"{}"), "engine_refused"),
        (answer(200, SHARD_REFUSED), "engine_refused"),
        (BROKEN, "engine_failed"),
        (b"no HTTP, and connection: close\r\n\r\n", "engine_failed"),
    ],
)
def test_a_deeper_search_that_the_engine_fails(
    proxy: Proxied, engine: ScriptedServer, other: bytes, reason: str
) -> None:
    """The proxy then sends the client's own search, and answers with its hits; also if only one of the indices does not
    allow the deeper one, whose answer lacks the hits of that index.
    """
    before = proxy.count("proxy_requests", outcome="failed")
    engine.others[DEEPER] = other
    assert_the_clients_own(search(proxy), engine, reason)

    proxy.wait_for_count("proxy_requests", before + 1, outcome="failed")


def test_a_deeper_search_that_takes_too_long() -> None:
    """The deeper search gets half of `proxy_timeout_s`; the client's own search then gets all of it."""
    with scripted_server(answer(200, HITS)) as engine, proxied(engine.url, proxy_timeout_s=2.0) as proxy:
        engine.delay_s = 1.5
        assert_the_clients_own(search(proxy), engine, "engine_timeout")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_error_that_the_client_would_get_anyway(proxy: Proxied, engine: ScriptedServer, status: int) -> None:
    """The client gets the engine's error, and the proxy does not ask the engine twice."""
    engine.answer = answer(status, b"{}")
    response = search(proxy)

    assert response.status_code == status
    assert response.headers["x-rerank-status"] == "skipped; reason=engine_error"
    assert len(engine.got) == 1


@pytest.mark.parametrize("status", [301, 400, 429, 500, 503])
def test_a_search_that_fails_by_itself(proxy: Proxied, engine: ScriptedServer, status: int) -> None:
    """The client gets the error of its own search, which does not count as failed re-ranking (alerts watch that)."""
    counts = [proxy.count("proxy_requests", outcome=outcome) for outcome in ("skipped", "failed")]
    reasons = proxy.count("proxy_unranked", reason="engine_error")
    engine.others[DEEPER] = answer(status, b'{"deeper":true}')
    engine.answer = answer(status, b'{"deeper":false}')
    response = search(proxy)

    assert (response.status_code, response.json()) == (status, {"deeper": False})
    assert response.headers["x-rerank-status"] == "skipped; reason=engine_error"
    assert len(engine.got) == 2
    proxy.wait_for_count("proxy_requests", counts[0] + 1, outcome="skipped")
    assert proxy.count("proxy_requests", outcome="failed") == counts[1]
    assert proxy.count("proxy_unranked", reason="engine_error") == reasons + 1


def test_a_header_with_control_characters(proxy: Proxied, engine: ScriptedServer) -> None:
    """They become blanks in a re-ranked answer too, whose connection they would cut."""
    engine.answer = engine.answer.replace(b"\r\n\r\n", b"\r\nwarning: a\x01b\x7fc\r\n\r\n")
    response = search(proxy)

    assert response.headers["x-rerank-status"] == "reranked; hits=1"
    assert response.headers["warning"] == "a b c"


def test_an_engine_that_answers_nothing(
    proxy: Proxied, engine: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests count as unanswered, also if the answer breaks off after it has begun: as its status has been sent, only
    the cut connection tells the client, and the log tells why.
    """
    before = proxy.count("proxy_requests", outcome="unanswered")
    engine.answer = b"no HTTP, and connection: close\r\n\r\n"
    response = search(proxy)
    assert (response.status_code, response.json()["error_type"]) == (502, "bad_gateway")
    assert len(engine.got) == 2
    engine.answer = BROKEN
    with proxy.client() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/docs")
        assert client.get(READY).status_code == 200
    assert "an answer was cut short: the search engine ended the connection" in caplog.text

    proxy.wait_for_count("proxy_requests", before + 2, outcome="unanswered")


def test_an_engine_that_is_silent() -> None:
    """After the deeper search the proxy sends the client's own search once, and then answers 504."""
    with scripted_server(held=True) as engine, proxied(engine.url, proxy_timeout_s=0.2) as proxy:
        response = search(proxy)
        assert (response.status_code, response.json()["error_type"]) == (504, "gateway_timeout")
        assert len(engine.got) == 2
        proxy.wait_for_count("proxy_requests", 1, outcome="unanswered")
        assert proxy.count("proxy_upstream_failures", reason="timeout") == 2


def test_an_engine_whose_connections_are_all_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bandrank.proxy.upstream.CONNECT_S", 0.1)
    with scripted_server(held=True) as engine, proxied(engine.url, proxy_connections=1) as proxy:
        with socket.create_connection(proxy.address, timeout=HANG_S) as connection:
            connection.sendall(b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n")
            assert engine.arrived.wait(HANG_S)
            assert search(proxy, **{"x-forwarded-for": "192.0.2.1"}).status_code == 429
        proxy.wait_for_count("proxy_requests", 1, outcome="unanswered")
        assert proxy.count("proxy_upstream_failures", reason="busy") == 1
        assert len(engine.got) == 1
