"""What the proxy forwards: every byte but the headers of one connection, in both directions and of any size."""

import gzip
import os
import re
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.proxied import Proxied, proxied
from support.scripted_server import ScriptedServer, body_of, headers_of, read_message, scripted_server
from support.tasks import HANG_S

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"
MIB = 1 << 20


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _as_new(engine: ScriptedServer) -> None:
    engine.got.clear()
    engine.answer = PLAIN


def request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([line + b" HTTP/1.1", b"Host: proxy", *headers, b"", body])


def test_a_request_is_handed_on(proxy: Proxied, engine: ScriptedServer) -> None:
    """Method, target, headers and body are the client's; the proxy sets the engine's host, and adds itself in `via`."""
    target = b"/a%2Fb/_doc/%C3%A9?x=1&x=%20+&pretty"
    sent = request(
        b"PUT " + target,
        b"Authorization: Basic eDp5",
        b"X-Twice: a",
        b"X-Twice: b",
        b"Content-Length: 3",
        body=b"\x00\xff\n",
    )
    proxy.send(sent)
    (got,) = engine.got
    line, *headers = got.partition(b"\r\n\r\n")[0].split(b"\r\n")

    assert line == b"PUT " + target + b" HTTP/1.1"
    assert headers == [
        b"host: " + engine.url.removeprefix("http://").encode(),
        b"authorization: Basic eDp5",
        b"x-twice: a",
        b"x-twice: b",
        b"content-length: 3",
        b"via: 1.1 bandrank",
        b"x-forwarded-for: 127.0.0.1",
    ]
    assert body_of(got) == b"\x00\xff\n"


def test_an_address_in_no_ascii_is_handed_on(proxy: Proxied, engine: ScriptedServer) -> None:
    """A trusted peer may put any bytes into X-Forwarded-For."""
    answer = proxy.send(request(b"GET /", b"X-Forwarded-For: \xe9"))
    (got,) = engine.got

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"x-forwarded-for: \xe9, \xe9" in got.lower()


def test_headers_of_one_connection_stay_on_it(proxy: Proxied, engine: ScriptedServer) -> None:
    """The proxy drops hop-by-hop headers and those that Connection names, both ways, but never the body's framing."""
    engine.answer = (
        b"HTTP/1.1 200 OK\r\nConnection: X-Secret, keep-alive\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\n"
        b"X-Elastic-Product: Elasticsearch\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n"
    )
    sent = request(
        b"POST /",
        b"Connection: X-Private, content-length, Host",
        b"X-Private: 1",
        b"TE: trailers",
        b"Proxy-Authorization: Basic eDp5",
        b"X-Forwarded-For: 192.0.2.1",
        b"Content-Length: 2",
        body=b"hi",
    )
    answer = proxy.send(sent)
    (got,) = engine.got

    assert headers_of(got).keys() == {"host", "content-length", "via", "x-forwarded-for"}
    assert headers_of(got)["x-forwarded-for"].split(", ") == ["192.0.2.1", "192.0.2.1"]  # the peer is trusted
    assert headers_of(answer).keys() == {"x-elastic-product", "set-cookie", "transfer-encoding"}
    assert re.findall(rb"set-cookie: (\S+)", answer) == [b"a=1", b"b=2"]
    assert body_of(answer) == b"ok"


def test_control_characters_in_the_engines_headers_become_blanks(proxy: Proxied, engine: ScriptedServer) -> None:
    engine.answer = PLAIN.replace(b"\r\n\r\n", b"\r\nX-Odd: a\x01b\x7fc\td\r\n\r\n")
    answer = proxy.send(request(b"GET /docs"))

    assert headers_of(answer)["x-odd"] == "a b c\td"
    assert body_of(answer) == b"ok"


def test_an_answer_is_handed_on(proxy: Proxied, engine: ScriptedServer) -> None:
    """Status, headers and bytes are the engine's, compressed or not, and nothing is added."""
    content = gzip.compress(b'{"hits": []}', mtime=0)
    engine.answer = (
        b'HTTP/1.1 418 whatever\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nWarning: 299 es "x"\r\n'
        b"Content-Length: %d\r\n\r\n" % len(content)
    ) + content
    answer = proxy.send(request(b"GET /_search", b"Accept-Encoding: gzip"))

    assert answer.startswith(b"HTTP/1.1 418 ")
    assert headers_of(answer) == {
        "content-type": "application/json",
        "content-encoding": "gzip",
        "warning": '299 es "x"',
        "content-length": str(len(content)),
    }
    assert body_of(answer) == content


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"HEAD /docs", b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n"),
        (b"DELETE /docs/_doc/1", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET /docs", b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n"),
    ],
)
def test_an_answer_without_a_body(proxy: Proxied, engine: ScriptedServer, line: bytes, answer: bytes) -> None:
    """The client gets the headers, even the length of a body that is not sent, and the connections stay usable."""
    engine.answer = answer
    with socket.create_connection(proxy.address, timeout=HANG_S) as connection:
        connection.sendall(request(line))
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        engine.answer = PLAIN
        connection.sendall(request(b"GET /again"))

        assert received == answer
        assert body_of(read_message(connection.recv)) == b"ok"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_a_length_without_a_body(
    proxy: Proxied, engine: ScriptedServer, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets the other headers, nothing is logged, and the connection can be used again."""
    engine.answer = b"HTTP/1.1 " + status + b"\r\netag: x\r\ncontent-length: 1234\r\n\r\n"
    with socket.create_connection(proxy.address, timeout=HANG_S) as connection:
        connection.sendall(request(b"GET /docs", b"If-None-Match: x"))
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        engine.answer = PLAIN
        connection.sendall(request(b"GET /again"))

        assert received == b"HTTP/1.1 " + status + b"\r\netag: x\r\n\r\n"
        assert body_of(read_message(connection.recv)) == b"ok"
    assert not caplog.records


def test_a_body_of_any_size_streams_through(proxy: Proxied, engine: ScriptedServer) -> None:
    """A chunked bulk request, larger than any body that the service reads itself, reaches the engine whole."""
    part = b"%x\r\n" % MIB + os.urandom(MIB) + b"\r\n"
    sent = request(b"POST /_bulk", b"Transfer-Encoding: chunked", b"Content-Type: application/x-ndjson")
    with socket.create_connection(proxy.address, timeout=HANG_S) as connection:
        connection.sendall(sent)
        for _ in range(20):
            connection.sendall(part)
        connection.sendall(b"0\r\n\r\n")
        answer = read_message(connection.recv)

    assert body_of(answer) == b"ok"
    assert body_of(engine.got[0]) == body_of(b"Transfer-Encoding: chunked\r\n\r\n" + part * 20)


def test_neither_side_is_read_faster_than_the_other() -> None:
    """The proxy stops reading from one side while the other takes nothing, so no body fills its memory."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        proxied(f"http://127.0.0.1:{listener.getsockname()[1]}") as proxy,
    ):
        with socket.create_connection(proxy.address) as client:
            client.sendall(request(b"POST /_bulk", b"Content-Length: %d" % (1 << 40)))
            with listener.accept()[0]:
                assert sent_until_full(client) < MOST_ON_THE_WAY
        with socket.create_connection(proxy.address) as client:
            client.sendall(request(b"GET /docs/_search?size=10000"))
            with listener.accept()[0] as engine:
                engine.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
                assert sent_until_full(engine) < MOST_ON_THE_WAY


MOST_ON_THE_WAY = 32 * MIB  # the buffers of four sockets, which grow on Linux, and a little of the proxy


def sent_until_full(connection: socket.socket) -> int:
    """The bytes that a connection takes before it takes nothing for a while."""
    connection.settimeout(0.4)
    sent = 0
    try:
        while sent < 4 * MOST_ON_THE_WAY:
            sent += connection.send(bytes(MIB))
    except TimeoutError:
        pass
    return sent


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 4", b"Transfer-Encoding: chunked"],
        [b"Content-Length: 4", b"Content-Length: 5"],
        [b"Transfer-Encoding: chunked, identity"],
        [b"Transfer-Encoding : chunked"],
        [b"X-A: b\rTransfer-Encoding: chunked"],
        [b"X-A: b\x00c"],
        [b"X-A: b", b" Transfer-Encoding: chunked"],
    ],
)
def test_a_request_that_two_could_read_differently_is_refused(
    proxy: Proxied, engine: ScriptedServer, lines: list[bytes]
) -> None:
    """No byte of such a request reaches the engine."""
    answer = proxy.send(request(b"POST /", *lines, body=b"0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"))

    assert answer.split(b" ")[1] in {b"400", b"422"}
    assert engine.got == []


def test_a_body_in_a_transfer_coding_is_refused(proxy: Proxied, engine: ScriptedServer) -> None:
    """The proxy would drop the coding, and nothing else would tell the engine that the body is encoded."""
    answer = proxy.send(request(b"POST /", b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"))

    assert answer.split(b" ")[1] == b"422"
    assert engine.got == []


@pytest.mark.parametrize("target", [b"http://192.0.2.9/x", b"//192.0.2.9/x", b"/x?u=http://192.0.2.9/"])
def test_no_target_leads_elsewhere(proxy: Proxied, engine: ScriptedServer, target: bytes) -> None:
    """The proxy connects to the engine of the settings, whatever target a client writes."""
    proxy.send(request(b"GET " + target))
    (got,) = engine.got

    assert headers_of(got)["host"] == engine.url.removeprefix("http://")
    assert got.startswith(b"GET " + target.removeprefix(b"http://192.0.2.9"))


def test_connections_to_the_engine_are_kept(engine: ScriptedServer) -> None:
    """The proxy is a new one, which has no request of another test to count yet."""
    before = engine.accepted
    with proxied(engine.url) as proxy:
        for number in range(5):
            proxy.send(request(b"GET /"))
            proxy.wait_for_count("proxy_requests", number + 1, outcome="passed")  # the connection is free again

    assert len(engine.got) == 5
    assert engine.accepted == before + 1


def test_a_client_that_sends_no_more_gets_its_answer(proxy: Proxied) -> None:
    """A client that has shut down its sending side has not hung up."""
    with socket.create_connection(proxy.address, timeout=HANG_S) as connection:
        connection.sendall(request(b"GET /"))
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(1024):
            received += part

    assert received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"\r\n\r\nok")


def test_a_client_of_http_1_0_gets_no_chunks(proxy: Proxied, engine: ScriptedServer) -> None:
    """Its answer ends with the connection (RFC 9112, 6.3)."""
    engine.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
    with socket.create_connection(proxy.address, timeout=HANG_S) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(1024), b""))

    assert received == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok"


@pytest.mark.parametrize("blanks", [b"", b" \t"])  # behind a value, of which they are no part (RFC 9112, 5)
def test_a_client_that_expects_100_gets_it(proxy: Proxied, engine: ScriptedServer, blanks: bytes) -> None:
    """The proxy answers 100 itself: the client waits for it before it sends the body, and the engine is not asked."""
    headers = [b"Expect: 100-continue" + blanks, b"X-Note: a b" + blanks, b"Content-Length: 2"]
    with socket.create_connection(proxy.address, timeout=HANG_S) as connection:
        connection.sendall(request(b"PUT /a", *headers))
        assert connection.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hi")
        assert body_of(read_message(connection.recv)) == b"ok"

    assert "expect" not in headers_of(engine.got[0])
    assert b"\r\nx-note: a b\r\n" in engine.got[0]


TOKENS = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20).map(lambda name: f"x-{name}".encode())
VALUES = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f", exclude_categories=["Cc", "Zs"]),
    max_size=40,
).map(lambda value: value.encode("latin-1"))
FIELDS = st.lists(st.tuples(TOKENS, VALUES), max_size=8)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sent=st.tuples(FIELDS, st.binary(max_size=3000)),
    answered=st.tuples(st.sampled_from([200, 201, 400, 404, 429, 503]), FIELDS, st.binary(max_size=3000)),
    chunked=st.booleans(),
)
def test_whatever_comes_is_handed_on(
    proxy: Proxied,
    engine: ScriptedServer,
    sent: tuple[list[tuple[bytes, bytes]], bytes],
    answered: tuple[int, list[tuple[bytes, bytes]], bytes],
    chunked: bool,
) -> None:
    engine.got.clear()
    fields, body = sent
    lines = [b"%b: %b" % pair for pair in fields]
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked and body else b"0\r\n\r\n" if chunked else body
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    status, answer_fields, answer_body = answered
    head = [b"HTTP/1.1 %d Any" % status, *(b"%b: %b" % pair for pair in answer_fields)]
    engine.answer = b"\r\n".join([*head, b"Content-Length: %d" % len(answer_body), b"", answer_body])
    answer = proxy.send(request(b"POST /index/_bulk", *lines, framing, body=framed))
    (got,) = engine.got

    assert body_of(got) == body
    assert x_headers(got) == [line.lower()[: line.index(b":")] + line[line.index(b":") :] for line in lines]
    assert int(answer.split(b" ")[1]) == status
    assert body_of(answer) == answer_body
    assert x_headers(answer) == [b"%b: %b" % pair for pair in answer_fields]


def x_headers(message: bytes) -> list[bytes]:
    """The header lines that the test made up."""
    lines = message.partition(b"\r\n\r\n")[0].split(b"\r\n")
    return [line for line in lines if line.startswith(b"x-") and not line.startswith(b"x-forwarded-for: 127")]
