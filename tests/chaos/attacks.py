"""Attacks on the running service, each a function of its address that takes some seconds at most.

`ATTACKS` maps a name to the attack and the statuses that its requests may get; a connection that is closed counts as 0.
"""

import contextlib
import gzip
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx

Attack = Callable[[str], set[int]]
ATTACKS: dict[str, tuple[Attack, set[int]]] = {}
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
MB = 1_000_000


def attack(*allowed: int) -> Callable[[Attack], Attack]:
    """Registers an attack under its function's name. allowed: statuses, 0 for a closed connection."""

    def register(function: Attack) -> Attack:
        ATTACKS[function.__name__] = function, set(allowed)
        return function

    return register


def register_body(
    name: str, content: bytes, *allowed: int, path: str = "/rerank", method: str = "POST", **headers: str
) -> None:
    """Registers an attack of one request with this body."""
    sent = {name.replace("_", "-"): value for name, value in ({"content_type": "application/json"} | headers).items()}
    ATTACKS[name] = (lambda url: {_status(url, method, path, content=content, headers=sent)}), set(allowed)


def _status(url: str, method: str, path: str, **more: Any) -> int:
    try:
        return httpx.request(method, url + path, timeout=90.0, trust_env=False, **more).status_code
    except httpx.TransportError:
        return 0


def _post(url: str, body: Any, **more: Any) -> int:
    return _status(url, "POST", "/rerank", content=json.dumps(body).encode(), headers=JSON, **more)


def _together(calls: Sequence[Callable[[], int]]) -> set[int]:
    statuses: set[int] = set()
    threads = [threading.Thread(target=lambda call=call: statuses.add(call())) for call in calls]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


@contextlib.contextmanager
def _connection(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def _raw(url: str, *parts: bytes, pause_s: float = 0.0) -> set[int]:
    """Sends parts over a connection; the status of the first answer."""
    with _connection(url) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
            answer = connection.recv(4096)
        except OSError:
            return {0}
    return {int(answer.split(b" ", 2)[1])} if answer.startswith(b"HTTP/1.") else {0}


HEAD = b"POST /rerank HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
WORDS = ["the", "man", "who", "was", "she", "and", "is", "it", "he", "you", "no"]


def _words(count: int) -> str:
    return " ".join(random.Random(count).choice(WORDS) for _ in range(count))


# Bodies: one request each.

register_body("candidates_are_a_million_numbers", b'{"query":"x","candidates":[' + b"1," * 999_999 + b"1]}", 422)
register_body("candidates_are_a_million_nulls", b'{"query":"x","candidates":[' + b"null," * 499_999 + b"null]}", 422)
register_body("candidates_are_many_empty_objects", b'{"query":"x","candidates":[' + b"{}," * 999_999 + b"{}]}", 422)
register_body(
    "candidates_are_a_million_empty_texts", b'{"query":"x","candidates":[' + b'"",' * 999_999 + b'""]}', 413, 422
)
register_body(
    "ids_without_texts_by_the_hundred_thousand",
    b'{"query":"x","candidates":[' + b'{"id":"a"},' * 99_999 + b'{"id":"a"}]}',
    413,
    422,
)
register_body("a_query_of_four_megabytes", b'{"query":"' + b"man " * MB + b'","candidates":["a"]}', 200, 413)
register_body("a_query_of_fifteen_megabytes", b'{"query":"' + b"x" * 15 * MB + b'","candidates":["a"]}', 200, 413)
register_body(
    "a_candidate_of_fifteen_megabytes", b'{"query":"x","candidates":["' + b"man " * 3_800_000 + b'"]}', 200, 413
)
register_body("a_candidate_of_one_long_word", b'{"query":"x","candidates":["' + b"x" * 15 * MB + b'"]}', 200, 413)
register_body("a_candidate_of_spaces", b'{"query":"x","candidates":["' + b" " * 15 * MB + b'"]}', 200, 413)
register_body(
    "a_candidate_of_combining_marks", ('{"query":"x","candidates":["a' + "\u0301" * 2 * MB + '"]}').encode(), 200, 413
)
register_body("a_candidate_of_emoji", ('{"query":"x","candidates":["' + "\U0001f9ea" * MB + '"]}').encode(), 200, 413)
register_body("a_candidate_of_chinese", ('{"query":"x","candidates":["' + "\u4e2d" * 3 * MB + '"]}').encode(), 200, 413)
register_body("a_candidate_of_punctuation", b'{"query":"x","candidates":["' + b"!?." * 3 * MB + b'"]}', 200, 413)
register_body("a_body_of_fifty_megabytes", b'{"query":"' + b"x" * 50 * MB, 413, 0)
register_body("arrays_in_arrays", b"[" * MB, 422)
register_body("objects_in_objects", b'{"a":' * 500_000, 422)
register_body("deep_candidates", b'{"query":"x","candidates":' + b"[" * 500_000 + b"]" * 500_000 + b"}", 422)
register_body("a_number_of_a_million_digits", b'{"query":"x","candidates":["a"],"top_n":' + b"9" * MB + b"}", 422)
register_body("an_exponent_beyond_all_floats", b'{"query":"x","candidates":["a"],"budget_ms":1e999999}', 422, 200)
register_body("a_budget_that_is_no_number", b'{"query":"x","candidates":["a"],"budget_ms":NaN}', 422)
register_body("a_negative_top_n", b'{"query":"x","candidates":["a"],"top_n":-1}', 422)
register_body("a_huge_top_n", b'{"query":"x","candidates":["a"],"top_n":99999999999999999999}', 200, 422)
register_body("a_million_fields", b"{" + b",".join(b'"f%d":1' % n for n in range(MB)) + b"}", 422)
register_body(
    "the_same_field_a_million_times", b'{"query":"x","candidates":["a"]' + b',"top_n":1' * MB + b"}", 200, 422
)
register_body("a_field_name_of_megabytes", b'{"' + b"x" * 10 * MB + b'":1}', 422)
register_body("surrogates_alone", b'{"query":"\\ud800","candidates":["\\udfff"]}', 200, 422)
register_body("zeros_in_texts", b'{"query":"a\\u0000b","candidates":["c\\u0000d"]}', 200, 422)
register_body("no_utf8", b'{"query":"\xff\xfe","candidates":["a"]}', 422)
register_body("utf16", '{"query":"x","candidates":["a"]}'.encode("utf-16"), 422)
register_body("a_byte_order_mark", b'\xef\xbb\xbf{"query":"x","candidates":["a"]}', 200, 422)
register_body("an_empty_body", b"", 422)
register_body("json_after_json", b'{"query":"x","candidates":["a"]}' * 1000, 422)
register_body("gzip_as_json", gzip.compress(b'{"query":"x","candidates":["a"]}'), 415, 422, content_encoding="gzip")
register_body("a_gzip_bomb", gzip.compress(b"\0" * 200 * MB), 413, 415, 422, content_encoding="gzip")
register_body("a_budget_header_of_kilobytes", b'{"query":"x","candidates":["a"]}', 422, 431, x_budget_ms="9" * 20_000)
register_body("a_model_name_of_megabytes", b'{"query":"x","candidates":["a"],"model":"' + b"x" * 10 * MB + b'"}', 404)
register_body("a_strategy_of_megabytes", b'{"query":"x","candidates":["a"],"strategy":"' + b"x" * 10 * MB + b'"}', 422)
register_body(
    "a_million_candidates_to_register",
    b'{"candidates":[' + b"1," * 999_999 + b"1]}",
    403,
    422,
    path="/candidates",
    method="PUT",
)
register_body(
    "a_million_ids_to_forget", b'{"ids":[' + b"1," * 999_999 + b"1]}", 403, 422, path="/candidates", method="DELETE"
)
register_body(
    "an_id_of_megabytes",
    json.dumps({"candidates": [{"id": "x" * 10 * MB, "text": "a"}]}).encode(),
    403,
    422,
    path="/candidates",
    method="PUT",
)
register_body(
    "a_line_of_fifteen_megabytes",
    b'{"id":"a","text":"' + b"x" * 15 * MB,
    200,
    413,
    path="/candidates",
    method="PUT",
    content_type="application/x-ndjson",
)
register_body(
    "lines_of_nothing", b"\n" * 10 * MB, 200, path="/candidates", method="PUT", content_type="application/x-ndjson"
)
register_body(
    "lines_that_are_no_json",
    b"x\n" * 200_000,
    200,
    path="/candidates",
    method="PUT",
    content_type="application/x-ndjson",
)
register_body(
    "gzip_lines",
    gzip.compress(b'{"id":"a","text":"b"}\n' * 1000),
    415,
    path="/candidates",
    method="PUT",
    content_type="application/x-ndjson",
    content_encoding="gzip",
)


# More than one request, or more than a body.


@attack(200, 413, 429)
def one_request_of_two_thousand_long_candidates(url: str) -> set[int]:
    """A million tokens: refused, or done in time; small requests pass it."""
    return {_post(url, {"query": "x", "candidates": [f"{n} {_words(450)}" for n in range(2048)]})}


@attack(200, 413, 429)
def six_huge_queries_at_once(url: str) -> set[int]:
    """They share one tokenizer."""
    return _together([lambda: _post(url, {"query": "man " * 3_000_000, "candidates": ["a"]})] * 6)


@attack(200, 413, 429)
def candidates_of_megabytes_at_once(url: str) -> set[int]:
    """Two texts of five megabytes in each of four requests."""
    return _together([lambda: _post(url, {"query": "x", "candidates": ["man " * 1_200_000, "she " * 1_200_000]})] * 4)


@attack(200, 429)
def a_flood_of_small_requests(url: str) -> set[int]:
    """Two hundred at once."""
    return _together([lambda: _post(url, {"query": "x", "candidates": ["a", "b"]})] * 200)


@attack(200, 413, 429)
def a_flood_of_large_requests(url: str) -> set[int]:
    """Twenty, of two thousand candidates each."""
    return _together([lambda: _post(url, {"query": "x", "candidates": [f"{n} man" for n in range(2000)]})] * 20)


@attack(200, 403, 413, 422, 507)
def one_registered_text_asked_for_a_thousand_times(url: str) -> set[int]:
    """Two megabytes, to be returned a thousand times."""
    body = {"candidates": [{"id": "bomb", "text": "man " * 500_000}]}
    put = _status(url, "PUT", "/candidates", content=json.dumps(body).encode(), headers=JSON)
    asked = {"query": "x", "candidates": [{"id": "bomb"}] * 1000, "return_documents": True}
    return {put, _post(url, asked)}


@attack(200, 413, 429)
def a_text_returned_by_request(url: str) -> set[int]:
    """Fifteen megabytes in, fifteen out, ten times at once."""
    body = {"query": "x", "candidates": ["man " * 3_500_000], "return_documents": True}
    return _together([lambda: _post(url, body)] * 10)


@attack(200, 408, 0)
def a_thousand_silent_connections(url: str) -> set[int]:
    """They say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(_connection(url))
        time.sleep(1)
        return {_status(url, "GET", "/healthz")}


@attack(200, 408, 0)
def two_thousand_silent_connections_in_waves(url: str) -> set[int]:
    """More than may be open, again and again."""
    statuses = set()
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            for _ in range(1000):
                with contextlib.suppress(OSError):
                    stack.enter_context(_connection(url))
            statuses.add(_status(url, "GET", "/healthz"))
    return statuses


@attack(200, 408, 0)
def connections_that_drip_headers(url: str) -> set[int]:
    """A hundred, a byte a tenth of a second."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(_connection(url)) for _ in range(100)]
        for byte in b"POST /rerank HTTP/1.1":
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(bytes([byte]))
            time.sleep(0.1)
        return {_status(url, "GET", "/healthz")}


@attack(200, 408, 0)
def connections_that_stop_in_a_body(url: str) -> set[int]:
    """A hundred, each owed sixteen megabytes."""
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(_connection(url))
            connection.sendall(HEAD + b"Content-Length: 16000000\r\n\r\n" + b"x" * 1000)
        time.sleep(2)
        return {_status(url, "GET", "/healthz")}


@attack(200, 408, 0)
def answers_that_nobody_reads(url: str) -> set[int]:
    """Ten, of ten megabytes each."""
    body = json.dumps({"query": "x", "candidates": ["man " * 2_500_000], "return_documents": True}).encode()
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            connection = stack.enter_context(_connection(url))
            with contextlib.suppress(OSError):
                connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(2)
        return {_status(url, "GET", "/healthz")}


@attack(200, 0, 499)
def clients_that_hang_up(url: str) -> set[int]:
    """Two hundred, each after it has sent its request."""
    body = json.dumps({"query": "x", "candidates": [_words(200)] * 50}).encode()
    for _ in range(200):
        with _connection(url) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return {_status(url, "GET", "/healthz")}


@attack(431, 400, 0)
def a_header_of_a_hundred_megabytes(url: str) -> set[int]:
    """Sent as fast as it is taken."""
    return _raw(url, b"GET /healthz HTTP/1.1\r\nX: ", *[b"x" * MB] * 100)


@attack(431, 400, 0)
def a_hundred_thousand_headers(url: str) -> set[int]:
    """Short ones."""
    return _raw(url, b"GET /healthz HTTP/1.1\r\n", *[b"X: 1\r\n" * 1000] * 100)


@attack(431, 400, 414, 0)
def an_address_of_megabytes(url: str) -> set[int]:
    """In the first line."""
    return _raw(url, b"GET /" + b"x" * 5 * MB + b" HTTP/1.1\r\nHost: b\r\n\r\n")


@attack(400, 0)
def no_http(url: str) -> set[int]:
    """Random bytes."""
    return _raw(url, os.urandom(100_000) + b"\r\n\r\n")


@attack(400, 0)
def a_content_length_that_is_negative(url: str) -> set[int]:
    """Which no parser should take."""
    return _raw(url, HEAD + b"Content-Length: -1\r\n\r\n{}")


@attack(400, 0)
def two_content_lengths(url: str) -> set[int]:
    """Of which only one can be true."""
    return _raw(url, HEAD + b"Content-Length: 2\r\nContent-Length: 200\r\n\r\n{}")


@attack(400, 0)
def a_content_length_beside_chunks(url: str) -> set[int]:
    """As request smugglers send."""
    return _raw(url, HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n")


@attack(422, 400, 413, 0)
def chunks_of_a_byte(url: str) -> set[int]:
    """A hundred thousand of them."""
    return _raw(url, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 100_000, b"0\r\n\r\n")


@attack(400, 413, 0)
def a_chunk_of_a_terabyte(url: str) -> set[int]:
    """Announced, not sent."""
    with _connection(url) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n" + b"x" * 1000)
        time.sleep(1)
    return {0}


@attack(200, 400, 0)
def requests_in_a_pipeline(url: str) -> set[int]:
    """Five thousand at once, whose answers nobody reads."""
    with _connection(url) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n" * 5000)
        time.sleep(0.5)
        answer = connection.recv(100)
    return {int(answer.split(b" ", 2)[1])}


@attack(404, 405, 200, 400, 0)
def paths_and_methods_at_random(url: str) -> set[int]:
    """None of them may be a server error."""
    rng = random.Random(0)
    methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"]
    paths = [
        "/",
        "/docs",
        "/openapi.json",
        "/rerank/",
        "/../etc/passwd",
        "/%00",
        "/%ff",
        "//",
        "/v1/models",
        "/readyz",
        "/nothing",
    ]
    return {_status(url, rng.choice(methods), rng.choice(paths)) for _ in range(100)}


@attack(200, 422, 429)
def budgets_that_nobody_can_keep(url: str) -> set[int]:
    """A nanosecond each."""
    return _together([lambda: _post(url, {"query": "x", "candidates": ["a"] * 50, "budget_ms": 1e-6})] * 20)


@attack(200, 403, 413, 503, 507)
def a_store_filled_with_short_texts(url: str) -> set[int]:
    """Sixty thousand ids with nothing much behind them."""
    lines = b"".join(b'{"id":"%d","text":""}\n' % n for n in range(60_000))
    return {_status(url, "PUT", "/candidates", content=lines, headers=NDJSON)}


@attack(200, 403, 404)
def ids_registered_and_forgotten(url: str) -> set[int]:
    """A hundred times the same."""
    statuses = set()
    for _ in range(50):
        put = {"candidates": [{"id": "a", "text": "man"}]}
        statuses.add(_status(url, "PUT", "/candidates", content=json.dumps(put).encode(), headers=JSON))
        statuses.add(_status(url, "DELETE", "/candidates", content=b'{"ids":["a"]}', headers=JSON))
    return statuses


@attack(200, 429)
def the_same_large_request_again_and_again(url: str) -> set[int]:
    """Eight times at once: equal texts share no more than their tokens."""
    body = {"query": "x", "candidates": [f"{n} {_words(60)}" for n in range(300)]}
    return _together([lambda: _post(url, body)] * 8)


@attack(200)
def metrics_scraped_without_end(url: str) -> set[int]:
    """Two hundred scrapes from ten clients."""

    def scrape() -> int:
        return max(_status(url, "GET", "/metrics") for _ in range(20))

    return _together([scrape] * 10)


@attack(200, 503)
def readiness_asked_without_end(url: str) -> set[int]:
    """A self-test a call would be a way to load the service."""

    def ask() -> int:
        return max(_status(url, "GET", "/readyz") for _ in range(20))

    return _together([ask] * 10)
