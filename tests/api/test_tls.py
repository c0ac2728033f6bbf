"""HTTPS: requests to a service with a certificate, limits on its connections, and files that cannot be used."""

import json
import logging
import re
import socket
import ssl
import time
from asyncio.constants import SSL_SHUTDOWN_TIMEOUT
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from support.certificates import Certificate, make_certificate
from support.deploy import image_health, needs_program, run
from support.listening import Listening, ended_with, listening
from support.plain_http import get
from support.scripted_server import read_message
from support.tasks import HANG_S, wait_until

from bandrank.api.certificate import served_certificate
from bandrank.api.draining import DrainingServer
from bandrank.errors import BadSetting
from bandrank.settings import Settings

BODY = json.dumps({"query": "who", "candidates": ["man"]}).encode()
HEAD = b"POST /rerank HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    """A certificate that is made for this test."""
    return make_certificate(tmp_path)


@contextmanager
def over_https(certificate: Certificate, **more: Any) -> Iterator[Listening]:
    """A service with this certificate, and clients that trust it."""
    settings = Settings(device="cpu", tls_certificate=certificate.certificate, tls_key=certificate.key)
    with listening(settings, trust=certificate.trust, **more) as service:
        yield service


def test_requests_are_answered(certificate: Certificate) -> None:
    """Several requests share a connection; answers have the usual headers, and one that keeps browsers to HTTPS."""
    with over_https(certificate) as service, service.client() as client:
        answers = [client.post("/rerank", content=BODY) for _ in range(3)]
        big = client.post("/rerank", content=b" " * (20 << 20))

    assert [answer.status_code for answer in (*answers, big)] == [200, 200, 200, 413]
    assert answers[0].headers["strict-transport-security"] == "max-age=31536000"
    assert answers[0].headers["x-content-type-options"] == "nosniff"
    assert "server" not in answers[0].headers


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_what_comes_with_the_last_message_of_the_handshake_is_read(certificate: Certificate, loop: str) -> None:
    """A client that waits for nothing may send its request in the same packet as the handshake's last message."""
    with over_https(certificate, loop=loop) as service, socket.create_connection(service.address) as plain:
        plain.settimeout(HANG_S)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = certificate.trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(65536))
        assert outgoing.pending  # the handshake's last message
        client.write(HEAD % len(BODY) + BODY)
        plain.sendall(outgoing.read())
        answer = b""
        while b"results" not in answer:
            try:
                answer += client.read(65536)
            except ssl.SSLWantReadError:
                incoming.write(plain.recv(65536))

    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(("host", "named"), [("127.0.0.1", ["127.0.0.1"]), ("", ["0.0.0.0", "[::]"])])  # noqa: S104
def test_the_log_says_which_urls_to_use(
    host: str, named: list[str], scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has each address that the service listens on, and no other URL."""
    config = uvicorn.Config(lambda: None, host=host, port=0, log_config=None, lifespan="off")
    server = DrainingServer(config, scheme=scheme, drain_s=0, on_drain=lambda: None, on_close=lambda: None)
    server.should_exit = True
    with caplog.at_level(logging.INFO):
        server.run()

    urls = re.findall(r"(http\S+):\d+", caplog.text)
    assert sorted(urls) == [f"{scheme}://{each}" for each in named]


def test_plain_http_is_not_answered(certificate: Certificate) -> None:
    with over_https(certificate) as service:
        with pytest.raises(httpx.TransportError):
            get(service.url.replace("https", "http"))
        assert service.is_alive()
        assert service.refused("handshake") == 1


def test_a_handshake_that_does_not_come_is_ended(certificate: Certificate) -> None:
    """A client that sends nothing or only half a handshake is disconnected after a while."""
    with over_https(certificate) as service:
        for start in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
            with socket.create_connection(service.address, timeout=HANG_S) as connection:
                connection.sendall(start)
                assert ended_with(connection) == b""
        assert service.is_alive()
        assert service.refused("handshake") == 2


def test_silent_connections_make_room_for_others(certificate: Certificate) -> None:
    """A hundred connections that never begin a handshake keep nobody out."""
    with over_https(certificate, patience_s=300, max_connections=10) as service, ExitStack() as at_end:
        silent = [at_end.enter_context(socket.create_connection(service.address, timeout=HANG_S)) for _ in range(100)]
        assert service.is_alive()
        assert service.refused("displaced") >= 90
        assert ended_with(silent[0]) == b""


def test_slow_headers_are_ended(certificate: Certificate) -> None:
    with over_https(certificate) as service, service.connection(b"POST /rerank HTTP/1.1\r\n") as connection:
        assert ended_with(connection).startswith(b"HTTP/1.1 408")
        assert service.refused("slow_headers") == 1


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["kept alive", "closed"])
def test_an_answer_that_nobody_reads_is_dropped(more: bytes, certificate: Certificate) -> None:
    """The whole answer is encrypted at once, but still counts as unsent."""
    text = "man " + "x" * 14_000_000
    body = json.dumps({"query": "who", "return_documents": True, "candidates": [text]}).encode()
    with over_https(certificate) as service, service.connection() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall((HEAD % len(body)).replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n") + body)
        wait_until(lambda: service.refused("unread_answer"))


def test_nothing_is_left_of_connections_that_went_away(certificate: Certificate) -> None:
    """Clients go away in the middle of a handshake, right after it, and within a request."""
    with over_https(certificate, patience_s=300) as service:
        for _ in range(5):
            with socket.create_connection(service.address) as plain:
                plain.sendall(b"\x16\x03\x01")
            with service.connection():
                pass
            with service.connection(HEAD % 100 + b"{"):
                pass
        wait_until(lambda: service.scrape().value("bandrank_connections") == 1)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n",
        b"no HTTP\r\n",
    ],
    ids=["idle", "closed", "slow", "malformed"],
)
def test_a_connection_that_ends_does_not_wait_for_its_client(sent: bytes, certificate: Certificate, loop: str) -> None:
    """Its slot is free soon after the last answer, though the client never says goodbye."""
    with over_https(certificate, loop=loop, keep_alive_s=1) as service, service.connection(sent) as connection:
        assert ended_with(connection).startswith(b"HTTP/1.1 ")
        told = time.monotonic()
        wait_until(lambda: not service.connections.open)

        assert time.monotonic() - told < SSL_SHUTDOWN_TIMEOUT / 2


def test_connections_that_were_refused_make_room_for_others(certificate: Certificate) -> None:
    """Until their clients say goodbye, they are owed nothing, also if more had come behind what was refused."""
    refused = b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\nGET / HTTP/1.1\r\n"
    with over_https(certificate, patience_s=300, max_connections=10) as service, ExitStack() as at_end:
        for _ in range(10):
            connection = at_end.enter_context(service.connection(refused))
            assert ended_with(connection).startswith(b"HTTP/1.1 431")
        with service.client() as client:
            assert client.post("/rerank", content=BODY).status_code == 200


def test_a_last_answer_may_be_read_slowly(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS allows the end of a connection some time, in which its client may still be reading."""
    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 0.1)
    text = "man " + "x" * 14_000_000
    body = json.dumps({"query": "who", "return_documents": True, "candidates": [text]}).encode()
    head = (HEAD % len(body)).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with (
        over_https(certificate, loop="asyncio", patience_s=5) as service,
        service.connection(head + body) as connection,
    ):
        received = len(connection.recv(65536))
        time.sleep(1)
        received += len(ended_with(connection))

    assert received > len(text)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_stop_does_not_wait_for_idle_clients(certificate: Certificate, loop: str) -> None:
    """They are told that the connection ends, but would answer only when they next use it.

    So would one that was refused.
    """
    with ExitStack() as at_end:
        with over_https(certificate, loop=loop, patience_s=300) as service:
            refused = at_end.enter_context(service.connection(b"no HTTP\r\n"))
            assert ended_with(refused).startswith(b"HTTP/1.1 400")
            idle = at_end.enter_context(service.connection(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            assert read_message(idle.recv).startswith(b"HTTP/1.1 200")
            told = time.monotonic()

        assert time.monotonic() - told < SSL_SHUTDOWN_TIMEOUT
        assert idle.recv(65536) == b""  # after a goodbye: without one, this would raise


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_stop_ends_handshakes(certificate: Certificate, loop: str) -> None:
    """A client that ended its handshake during the stop, and then said nothing, would delay it."""
    with (
        ExitStack() as at_end,
        ThreadPoolExecutor(1) as clients,
        over_https(certificate, loop=loop, patience_s=20) as service,
    ):
        greeting = at_end.enter_context(socket.create_connection(service.address, timeout=5))
        busy = at_end.enter_context(service.connection(HEAD % len(BODY)))
        wait_until(lambda: len(service.connections.open) == 2)

        def greet_then_ask() -> bytes:
            assert ended_with(greeting) == b""
            busy.sendall(BODY)
            return read_message(busy.recv)

        answer = clients.submit(greet_then_ask)

    assert answer.result().startswith(b"HTTP/1.1 200")


def test_the_health_check_of_the_image_speaks_it_too(certificate: Certificate) -> None:
    """The check asks by HTTPS if a certificate is configured, else by HTTP; it fails if the service is dead."""
    with over_https(certificate) as service:
        assert image_health(service.address[1], BANDRANK_TLS_CERTIFICATE=certificate.certificate) == 0
        assert image_health(service.address[1]) != 0
    with listening() as service:
        assert image_health(service.address[1]) == image_health(service.address[1], BANDRANK_HOST="0.0.0.0") == 0  # noqa: S104
        assert image_health(service.address[1], BANDRANK_HOST="127.0.0.2") != 0  # nothing listens on that address
    assert image_health(service.address[1]) != 0


def test_both_files_are_needed(certificate: Certificate) -> None:
    """Either file without the other is a wrong setting; neither of them means no TLS."""
    assert served_certificate(Settings()) is None
    with pytest.raises(BadSetting, match=r"^tls_key must be set too"):
        served_certificate(Settings(tls_certificate=certificate.certificate))
    with pytest.raises(BadSetting, match=r"^tls_certificate must be set too"):
        served_certificate(Settings(tls_key=certificate.key))


def test_files_that_cannot_be_used_are_refused_by_name(certificate: Certificate, tmp_path: Path) -> None:
    """The message names the setting and the file that is missing, not in PEM, encrypted, or of another certificate."""
    other = make_certificate(tmp_path, "other")
    encrypted, text = tmp_path / "encrypted.key", tmp_path / "text.pem"
    text.write_text("neither", encoding="utf-8")
    openssl = needs_program("openssl", "Debian: openssl")
    run(openssl, "pkcs8", "-topk8", "-in", certificate.key, "-out", encrypted, "-passout", "pass:secret")
    missing = str(tmp_path / "missing")

    for paths, wrong, expected in (
        ((missing, certificate.key), missing, "tls_certificate cannot be read"),
        ((certificate.certificate, missing), missing, "tls_key cannot be read"),
        ((str(text), certificate.key), str(text), "tls_certificate is not a certificate in PEM"),
        ((certificate.key, certificate.key), certificate.key, "tls_certificate is not a certificate in PEM"),
        ((certificate.certificate, str(text)), str(text), "tls_key is not the certificate's key"),
        ((certificate.certificate, other.key), other.key, "tls_key is not the certificate's key"),
        ((certificate.certificate, str(encrypted)), str(encrypted), "tls_key is not the certificate's key"),
    ):
        with pytest.raises(BadSetting) as refused:
            served_certificate(Settings(tls_certificate=paths[0], tls_key=paths[1]))
        assert str(refused.value).startswith(expected)
        assert wrong in str(refused.value)
