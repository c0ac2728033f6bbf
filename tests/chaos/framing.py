"""Attacks on how a request is framed: its first line, its headers, its length, its chunks."""

import contextlib
import time

from chaos.table import BODY, HEAD, MB, answer_on, attack, connection_to, register_raw, request, send_raw, status_of

GET, METRICS = (b"GET " + path + b" HTTP/1.1\r\nHost: b\r\n" for path in (b"/healthz", b"/metrics"))
END = b"\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CLOSE = b"Connection: close\r\n"

register_raw("a_folded_header", GET + b"X: a\r\n b\r\n\tc" + END, 200, 400)
register_raw("a_header_name_with_a_space", GET + b"X Y: 1" + END, 400)
register_raw("a_header_name_with_a_zero", GET + b"X\0Y: 1" + END, 400)
register_raw("a_header_value_with_a_zero", GET + b"X: a\0b" + END, 400)
register_raw("a_header_value_of_control_characters", GET + b"X: \x01\x02\x7f\x1b[2J" + END, 200, 400)
register_raw("a_header_without_a_colon", GET + b"nothing" + END, 400)
register_raw("a_header_without_a_name", GET + b": 1" + END, 400)
register_raw("two_hosts", GET + b"Host: c" + END, 200, 400)
register_raw("no_host", b"GET /healthz HTTP/1.1" + END, 200, 400)
register_raw("a_host_with_a_path", b"GET /healthz HTTP/1.1\r\nHost: a/../b@c:99999" + END, 200, 400)
register_raw("line_ends_without_a_return", b"GET /healthz HTTP/1.1\nHost: b\n\n", 200, 400)
register_raw("returns_without_a_line_end", b"GET /healthz HTTP/1.1\rHost: b\r\r", 400)
register_raw("a_method_that_nobody_knows", b"BREW /rerank HTTP/1.1\r\nHost: b" + END, 400, 405)
register_raw("a_version_that_nobody_knows", b"GET /healthz HTTP/9.9\r\nHost: b" + END, 400, 505)
register_raw("no_version", b"GET /healthz\r\n\r\n", 200, 400)
register_raw("the_preface_of_http_2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0", 400, 405)
register_raw("the_greeting_of_tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), 400, 0)
register_raw("the_greeting_of_a_proxy", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + GET + END, 400)
register_raw("an_absolute_target", b"GET http://elsewhere:99/healthz HTTP/1.1\r\nHost: b" + END, 200, 400)
register_raw("a_target_of_an_asterisk", b"OPTIONS * HTTP/1.1\r\nHost: b" + END, 400, 404, 405)
register_raw("a_tunnel", b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: b" + END, 400, 404, 405, 0)
register_raw("a_target_that_is_no_ascii", b"GET /\xff\xfe\xc3\x28 HTTP/1.1\r\nHost: b" + END, 400, 404, 0)
register_raw("a_target_of_escapes", b"GET /" + b"%25" * 5000 + b" HTTP/1.1\r\nHost: b" + END, 400, 404)
register_raw("a_query_string_of_kilobytes", b"GET /healthz?" + b"%00&" * 5000 + b" HTTP/1.1\r\nHost: b" + END, 200, 400)
register_raw("cookies_by_the_thousand", GET + b"Cookie: " + b"a=b; " * 5000 + END, 200)
register_raw("forwarded_by_thousands", GET + b"X-Forwarded-For: " + b"1.2.3.4, " * 3000 + b"x" + END, 200)
register_raw("forwarded_with_nonsense", GET + b"X-Forwarded-For: ,,%s\r\nX-Forwarded-Proto: \xff" + END, 200, 400)
register_raw("ranges_by_the_thousand", GET + b"Range: bytes=" + b"0-0," * 5000 + END, 200)
register_raw("another_method_in_a_header", GET + b"X-HTTP-Method-Override: DELETE" + END, 200)
register_raw("an_upgrade_to_a_websocket", GET + b"Connection: Upgrade\r\nUpgrade: websocket" + END, 200, 400, 426)
register_raw("an_expectation_that_nobody_knows", request(headers=b"Expect: a-pony\r\n"), 200, 417)
register_raw("a_length_with_a_plus", HEAD + b"Content-Length: +46\r\n\r\n" + BODY, 400)
register_raw("a_length_in_hexadecimal", HEAD + b"Content-Length: 0x2e\r\n\r\n" + BODY, 400)
register_raw("a_length_beyond_64_bits", HEAD + b"Content-Length: 1" + b"0" * 30 + END + BODY, 400)
register_raw("a_list_of_lengths", HEAD + b"Content-Length: 46, 46\r\n\r\n" + BODY, 400)
register_raw("a_length_with_a_space_before_the_colon", HEAD + b"Content-Length : 46\r\n\r\n" + BODY, 400)
register_raw("a_length_that_is_too_short", HEAD + b"Content-Length: 5\r\n\r\n" + BODY, 400, 422)
register_raw("a_negative_chunk", CHUNKED + b"-1\r\n" + BODY, 400, 0)
register_raw("a_chunk_beyond_64_bits", CHUNKED + b"f" * 40 + b"\r\n" + BODY, 400, 0)
register_raw("a_chunk_that_is_longer_than_it_says", CHUNKED + b"2\r\n" + BODY + b"\r\n0\r\n\r\n", 400, 0)
register_raw("headers_after_the_body_that_change_it", CHUNKED + b"0\r\nContent-Length: 9\r\nHost: c\r\n\r\n", 400, 422)
register_raw("metrics_in_no_known_encoding", METRICS + b"Accept: */*;q=x,,\r\nAccept-Encoding: zstd;q=9" + END, 200)
register_raw("two_requests_of_which_one_is_none", request() + b"\0\1\2 nonsense\r\n\r\n", 200, 400)
register_raw("lines_before_the_request", b"\r\n" * 10_000 + GET + END, 200, 400, 431)
register_raw("a_hundred_thousand_lines_and_no_request", b"\r\n" * 100_000, 400, 431, 0)

ENCODINGS = (
    b"identity, chunked",
    b"chunked, chunked",
    b"xchunked",
    b"chunked\x0b",
    b'"chunked"',
    b"gzip, chunked",
    b"",
)


@attack(400, 413, 415, 422, 501, 0, quick=True)
def encodings_that_hide_chunks(url: str) -> set[int]:
    """Transfer codings as request smugglers write them: the service must not read a second request out of the body."""
    hidden = b"10\r\nGET /metrics HTT\r\n0\r\n\r\n"
    statuses: set[int] = set()
    for encoding in ENCODINGS:
        statuses |= send_raw(url, HEAD + CLOSE + b"Transfer-Encoding: " + encoding + END + hidden)
    return statuses


@attack(400, 422, 0, quick=True)
def chunks_in_an_old_version(url: str) -> set[int]:
    """HTTP/1.0 has no chunked coding."""
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
    return send_raw(url, head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")


@attack(400, 431, 0, quick=True)
def a_header_after_the_body_of_a_hundred_megabytes(url: str) -> set[int]:
    """A trailer, which counts towards the limit on headers."""
    return send_raw(url, CHUNKED + b"0\r\nX: ", *[b"x" * MB] * 100)


@attack(400, 431, 0, quick=True)
def a_hundred_thousand_headers_after_the_body(url: str) -> set[int]:
    return send_raw(url, CHUNKED + b"0\r\n", *[b"X: 1\r\n" * 1000] * 100)


@attack(400, 413, 422, 431, 0, quick=True)
def a_chunk_with_an_extension_of_megabytes(url: str) -> set[int]:
    return send_raw(url, CHUNKED + b"1;a=", *[b"x" * MB] * 50, b"\r\nx\r\n0\r\n\r\n")


@attack(200, quick=True)
def bodies_that_wait_to_be_asked_for(url: str) -> set[int]:
    """A hundred clients expect a 100, get it, and then never send their bodies."""
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(connection_to(url))
            connection.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 16000000\r\n\r\n")
        time.sleep(0.3)
        return {status_of(url, "GET", "/healthz")}


@attack(200, quick=True)
def a_client_that_asks_for_another_protocol(url: str) -> set[int]:
    """Some libraries offer HTTP/2 with every first request; the service answers in HTTP/1.1."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    return send_raw(url, request(headers=offer))


@attack(200, quick=True)
def a_request_in_single_bytes(url: str) -> set[int]:
    return send_raw(url, *(bytes([byte]) for byte in request()))


@attack(200, 0, quick=True)
def a_connection_that_is_asked_to_close_and_goes_on(url: str) -> set[int]:
    """The requests after the one that closes the connection get no answer."""
    with connection_to(url) as connection:
        connection.sendall(request(headers=CLOSE) + request() * 20)
        first = answer_on(connection)
        rest = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(65536):
                rest += part
    assert b"HTTP/1.1 200" not in rest
    return {first}
