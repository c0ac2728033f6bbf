"""The headers of every answer on a real connection, and what a refused request leaves behind."""

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.app import assert_error
from support.keys import KEYS, write_keys
from support.listening import Listening, ended_with, listening

from bandrank.logs import ACCESS
from bandrank.settings import Settings

SECURITY = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
BODY = json.dumps({"query": "who", "candidates": ["man"]}).encode()
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def service() -> Iterator[Listening]:
    """A service without keys."""
    with listening() as running:
        yield running


def headers_of(answer: bytes) -> dict[str, str]:
    """The headers of a raw answer, none of which may come twice."""
    lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    pairs = [tuple(line.lower().split(": ", 1)) for line in lines]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (b"200", b"GET /healthz HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n"),
        (b"200", b"GET /healthz HTTP/1.1\r\nHost: b\r\nOrigin: http://other.example\r\nConnection: close\r\n\r\n"),
        (b"404", b"GET /nothing HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n"),
        (b"405", b"OPTIONS /rerank HTTP/1.1\r\nHost: b\r\nOrigin: null\r\nConnection: close\r\n"
                 b"Access-Control-Request-Method: POST\r\n\r\n"),
        (b"422", b"POST /rerank HTTP/1.1\r\nHost: b\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"),
        (b"400", b"this is no HTTP\r\n\r\n"),
        (b"408", b"POST /rerank HTTP/1.1\r\nHost: b\r\n"),
        (b"431", b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(150))),
    ],
    ids=["200", "other site", "404", "preflight", "422", "no HTTP", "slow", "many headers"],
)  # fmt: skip
def test_every_answer_has_the_headers(service: Listening, status: bytes, sent: bytes) -> None:
    """Answers from below the application have them too; none names the server or lets another site's page read it."""
    with service.connection(sent) as connection:
        answer = ended_with(connection)

    headers = headers_of(answer)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert SECURITY.items() <= headers.items()
    assert not {name for name in headers if name.startswith("access-control-")} | headers.keys() & {"server"}
    assert "strict-transport-security" not in headers


def refused_service(folder: Path) -> Settings:
    """Settings with a file of keys."""
    return Settings(device="cpu", keys=write_keys(folder / "keys.toml"))


@pytest.mark.parametrize("megabytes", [1, 8, 40])
def test_a_refused_request_is_answered_whatever_its_body(megabytes: int, tmp_path: Path) -> None:
    """A client that sends its whole body first still reads 401, and its connection stays usable."""
    with listening(refused_service(tmp_path)) as service, service.client() as client:
        for _ in range(2):
            refused = client.post("/rerank", content=b" " * (megabytes << 20), headers=JSON)
            assert_error(refused, 401, "unauthorized")
        answered = client.post("/rerank", content=BODY, headers=JSON | {"X-API-Key": KEYS["rank"]})
        assert answered.status_code == httpx.codes.OK
        open_connections = client.get("/metrics", headers={"X-API-Key": KEYS["admin"]}).text
    assert "bandrank_connections 1.0" in open_connections


def test_a_refused_request_leaves_a_silent_connection(tmp_path: Path) -> None:
    """The body may come after the refusal; the connection then counts as silent, and makes room for others."""
    head = b"POST /rerank HTTP/1.1\r\nHost: b\r\nContent-Length: 1000\r\n\r\n"
    settings = refused_service(tmp_path)
    with listening(settings, max_connections=5, reserved=1, patience_s=300) as service, ExitStack() as at_end:
        first = at_end.enter_context(service.connection(head))
        assert first.recv(4096).startswith(b"HTTP/1.1 401")
        first.sendall(b" " * 1000)
        for _ in range(8):
            at_end.enter_context(service.connection())
        assert ended_with(first) == b""
        assert service.is_alive()


def test_a_body_that_nobody_needs_has_to_come(tmp_path: Path) -> None:
    """A client that is refused and then stops within its body loses its connection."""
    head = b"POST /rerank HTTP/1.1\r\nHost: b\r\nContent-Length: 100000\r\n\r\n"
    with listening(refused_service(tmp_path)) as service, service.connection(head + b" ") as connection:
        assert ended_with(connection).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(("size", "status"), [(1000, b"100"), (17 << 20, b"413")])
def test_a_body_that_is_too_large_is_not_asked_for(service: Listening, size: int, status: bytes) -> None:
    """A client that expects a 100 before it sends its body gets one if the body may come."""
    head = b"POST /rerank HTTP/1.1\r\nHost: b\r\nExpect: 100-Continue\r\nContent-Length: %d\r\n\r\n" % size
    with service.connection(head) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 " + status)


def test_pipelined_requests_are_answered_one_after_the_other() -> None:
    one = b"POST /rerank HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    with listening() as service, service.connection(one * 3) as connection:
        received = b""
        while received.count(b'"results"') < 3:
            received += connection.recv(65536)
        connection.sendall(one)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_trailer_is_no_header(service: Listening) -> None:
    """What follows a body in chunks changes nothing about the request before it."""
    head = b"POST /rerank HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"%x\r\n%b\r\n0\r\nX-Budget-Ms: none\r\n\r\n" % (len(BODY), BODY)
    with service.connection(head + chunks) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("trusted", "sender"), [("127.0.0.1", "203.0.113.9"), ("none", "127.0.0.1")])
def test_the_headers_of_proxies_count_where_the_proxy_is_trusted(
    trusted: str, sender: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A trusted proxy says whose a request is. No forwarded request is local; a direct one is."""
    settings, body = Settings(device="cpu", trusted_proxies=trusted), {"candidates": [{"id": "a", "text": "man"}]}
    with caplog.at_level(logging.INFO, ACCESS), listening(settings) as service, service.client() as client:
        forwarded = client.put("/candidates", json=body, headers={"X-Forwarded-For": "203.0.113.9"})
        assert_error(forwarded, 403, "forbidden")
        assert client.put("/candidates", json=body).status_code == httpx.codes.OK

    senders = [vars(record)["client"] for record in caplog.records if record.name == ACCESS]
    assert senders == [sender, "127.0.0.1"]
