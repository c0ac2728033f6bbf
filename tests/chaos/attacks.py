"""Attacks of more than one request, or of more than a body."""

import contextlib
import functools
import json
import os
import random
import time

from chaos.table import HEAD, JSON, MB, NDJSON, attack, connection_to, post, send_raw, status_of, together, words


@attack(200, 413, 429)
def one_request_of_two_thousand_long_candidates(url: str) -> set[int]:
    """A request of a million tokens is refused or done in time, and small requests overtake it."""
    return {post(url, {"query": "x", "candidates": [f"{n} {words(450)}" for n in range(2048)]})}


@attack(200, 413, 429)
def six_huge_queries_at_once(url: str) -> set[int]:
    """The six requests share one tokenizer."""
    return together([lambda: post(url, {"query": "man " * 3_000_000, "candidates": ["a"]})] * 6)


@attack(200, 413, 429)
def candidates_of_megabytes_at_once(url: str) -> set[int]:
    return together([lambda: post(url, {"query": "x", "candidates": ["man " * 1_200_000, "she " * 1_200_000]})] * 4)


@attack(200, 429)
def a_flood_of_small_requests(url: str) -> set[int]:
    return together([lambda: post(url, {"query": "x", "candidates": ["a", "b"]})] * 200)


@attack(200, 413, 429)
def a_flood_of_large_requests(url: str) -> set[int]:
    return together([lambda: post(url, {"query": "x", "candidates": [f"{n} man" for n in range(2000)]})] * 20)


@attack(422, 429)
def fields_that_take_long_over_three_hundred_connections(url: str) -> set[int]:
    """Each body of 150 KB is refused only after 25 ms of work."""
    deep: object = {"0": "man"}
    for _ in range(7):
        deep = {"a": deep}
    fields = ["a." * 7 + str(n) for n in range(16)]
    body = json.dumps({"query": "x", "documents": [*[deep] * 2047, {}], "rank_fields": fields}).encode()
    ask = functools.partial(status_of, url, "POST", "/v1/rerank", content=body, headers=JSON)
    return together([ask] * 300)


@attack(200, 403, 404, 413, 422, 429, 507)
def one_registered_text_asked_for_a_thousand_times(url: str) -> set[int]:
    """The answer would return a text of a megabyte a thousand times."""
    body = {"candidates": [{"id": "bomb", "text": "man " * 250_000}]}
    put = status_of(url, "PUT", "/candidates", content=json.dumps(body).encode(), headers=JSON)
    asked = {"query": "x", "candidates": [{"id": "bomb"}] * 1000, "return_documents": True}
    return {put, post(url, asked)}


@attack(200, 413, 429)
def a_text_returned_by_request(url: str) -> set[int]:
    body = {"query": "x", "candidates": ["man " * 3_500_000], "return_documents": True}
    return together([lambda: post(url, body)] * 10)


@attack(200, 408, 0)
def a_thousand_silent_connections(url: str) -> set[int]:
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connection_to(url))
        time.sleep(1)
        return {status_of(url, "GET", "/healthz")}


@attack(200, 408, 0)
def two_thousand_silent_connections_in_waves(url: str) -> set[int]:
    """Each wave opens more connections than the service allows."""
    statuses = set()
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            for _ in range(1000):
                with contextlib.suppress(OSError):
                    stack.enter_context(connection_to(url))
            statuses.add(status_of(url, "GET", "/healthz"))
    return statuses


@attack(200, 408, 0)
def connections_that_drip_headers(url: str) -> set[int]:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connection_to(url)) for _ in range(100)]
        for byte in b"POST /rerank HTTP/1.1":
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(bytes([byte]))
            time.sleep(0.1)
        return {status_of(url, "GET", "/healthz")}


@attack(200, 408, 0)
def connections_that_stop_in_a_body(url: str) -> set[int]:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(connection_to(url))
            connection.sendall(HEAD + b"Content-Length: 16000000\r\n\r\n" + b"x" * 1000)
        time.sleep(2)
        return {status_of(url, "GET", "/healthz")}


@attack(200, 408, 0)
def answers_that_nobody_reads(url: str) -> set[int]:
    body = json.dumps({"query": "x", "candidates": ["man " * 2_500_000], "return_documents": True}).encode()
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            connection = stack.enter_context(connection_to(url))
            with contextlib.suppress(OSError):
                connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(2)
        return {status_of(url, "GET", "/healthz")}


@attack(200, 0, 499)
def clients_that_hang_up(url: str) -> set[int]:
    body = json.dumps({"query": "x", "candidates": [words(200)] * 50}).encode()
    for _ in range(200):
        with connection_to(url) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return {status_of(url, "GET", "/healthz")}


@attack(431, 400, 0)
def a_header_of_a_hundred_megabytes(url: str) -> set[int]:
    return send_raw(url, b"GET /healthz HTTP/1.1\r\nX: ", *[b"x" * MB] * 100)


@attack(431, 400, 0)
def a_hundred_thousand_headers(url: str) -> set[int]:
    return send_raw(url, b"GET /healthz HTTP/1.1\r\n", *[b"X: 1\r\n" * 1000] * 100)


@attack(431, 400, 414, 0)
def an_address_of_megabytes(url: str) -> set[int]:
    return send_raw(url, b"GET /" + b"x" * 5 * MB + b" HTTP/1.1\r\nHost: b\r\n\r\n")


@attack(400, 0)
def no_http(url: str) -> set[int]:
    return send_raw(url, os.urandom(100_000) + b"\r\n\r\n")


@attack(400, 0)
def a_content_length_that_is_negative(url: str) -> set[int]:
    return send_raw(url, HEAD + b"Content-Length: -1\r\n\r\n{}")


@attack(400, 0)
def two_content_lengths(url: str) -> set[int]:
    return send_raw(url, HEAD + b"Content-Length: 2\r\nContent-Length: 200\r\n\r\n{}")


@attack(400, 0)
def a_content_length_beside_chunks(url: str) -> set[int]:
    """A request smuggler hides a second request like this."""
    return send_raw(
        url, HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n"
    )


@attack(422, 400, 413, 0)
def chunks_of_a_byte(url: str) -> set[int]:
    return send_raw(url, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 100_000, b"0\r\n\r\n")


@attack(400, 413, 0)
def a_chunk_of_a_terabyte(url: str) -> set[int]:
    """The chunk is announced, and a kilobyte of it is sent."""
    with connection_to(url) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n" + b"x" * 1000)
        time.sleep(1)
    return {0}


@attack(200, 400, 0)
def requests_in_a_pipeline(url: str) -> set[int]:
    """Five thousand requests are sent at once, and only the first answer is read."""
    with connection_to(url) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n" * 5000)
        time.sleep(0.5)
        answer = connection.recv(100)
    return {int(answer.split(b" ", 2)[1])}


@attack(404, 405, 422, 200, 400, 0)
def paths_and_methods_at_random(url: str) -> set[int]:
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
    return {status_of(url, rng.choice(methods), rng.choice(paths)) for _ in range(100)}


@attack(200, 422, 429)
def budgets_that_nobody_can_keep(url: str) -> set[int]:
    return together([lambda: post(url, {"query": "x", "candidates": ["a"] * 50, "budget_ms": 1e-6})] * 20)


@attack(200, 403, 413, 503, 507)
def a_store_filled_with_short_texts(url: str) -> set[int]:
    lines = b"".join(b'{"id":"%d","text":""}\n' % n for n in range(60_000))
    return {status_of(url, "PUT", "/candidates", content=lines, headers=NDJSON)}


@attack(200, 403, 404)
def ids_registered_and_forgotten(url: str) -> set[int]:
    statuses = set()
    for _ in range(50):
        put = {"candidates": [{"id": "a", "text": "man"}]}
        statuses.add(status_of(url, "PUT", "/candidates", content=json.dumps(put).encode(), headers=JSON))
        statuses.add(status_of(url, "DELETE", "/candidates", content=b'{"ids":["a"]}', headers=JSON))
    return statuses


@attack(200, 429)
def the_same_large_request_again_and_again(url: str) -> set[int]:
    """Equal texts share only their tokens."""
    body = {"query": "x", "candidates": [f"{n} {words(60)}" for n in range(300)]}
    return together([lambda: post(url, body)] * 8)


@attack(200)
def metrics_scraped_without_end(url: str) -> set[int]:
    def scrape() -> int:
        return max(status_of(url, "GET", "/metrics") for _ in range(20))

    return together([scrape] * 10)


@attack(200, 503)
def readiness_asked_without_end(url: str) -> set[int]:
    """If each call ran a self-test, anybody could load the service with them."""

    def ask() -> int:
        return max(status_of(url, "GET", "/readyz") for _ in range(20))

    return together([ask] * 10)
