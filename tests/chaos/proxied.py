"""Attacks on the search proxy: through what clients ask of it, and through what the search engine answers."""

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from chaos.table import MB, Attack, answer_on, connection_to, reset, status_of, together

PROXY_ATTACKS: dict[str, Attack] = {}
HEADERS = {"content-type": "application/json", "x-rerank": "body"}
MATCH = {"query": {"match": {"body": "who"}}}
RAW_HEAD = b"POST /docs/_search HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nX-Rerank: title\r\n"


def hits(sources: Any) -> bytes:
    """An answer of the engine with these documents."""
    listed = [{"_index": "docs", "_id": str(n), "_score": 1.0, "_source": source} for n, source in enumerate(sources)]
    answer = {"took": 1, "hits": {"total": {"value": len(listed)}, "max_score": 1.0, "hits": listed}}
    return json.dumps(answer, ensure_ascii=False).encode()


# What the engine answers, by the index that is searched.
ANSWERS: Mapping[str, Callable[[], bytes]] = {
    "docs": lambda: hits([{"title": "the man"}, {"title": "she"}]),
    "vectors": lambda: hits([{"body": "man", "vector": [0.12345678] * 10_000}] * 100),
    "vector": lambda: hits([{"body": "man", "vector": [1] * 600_000}]),
    "texts": lambda: hits([{"body": "man " * 35_000}] * 100),
    "one": lambda: hits([{"body": "man " * 3_500_000}]),
    "wide": lambda: hits([{"body": "man " * 35_000 + "\U0001f9ea"}] * 100),
    "strings": lambda: hits([{"body": ["ab"] * 10_000}] * 100),
    "fields": lambda: hits([{f"f{n}": n for n in range(5000)} | {"body": "man"}] * 100),
    "members": lambda: b'{"hits":{"hits":[{"fields":{' + b",".join(b'"%d":1' % n for n in range(600_000)) + b"}}]}}",
    "values": lambda: hits([{"body": [1] * 20_000}] * 100),
    "deep": lambda: b'{"hits":{"hits":[{"_source":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}]}}",
    "endless": lambda: b'{"hits":{"hits":[' + b" " * 20 * MB,
    "broken": lambda: hits([{"body": "man " * 35_000}] * 100)[:-1],
    "many": lambda: hits([{"body": "man"}] * 50_000),
}


@cache
def answer_for(index: str) -> bytes:
    """The engine's answer to a search of an index, built once."""
    return ANSWERS[index]()


class Engine(BaseHTTPRequestHandler):
    """A search engine that answers each search by its index, from ANSWERS, whatever the search asks for."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = answer_for(self.path.split("/")[1])
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Logs nothing."""


@contextlib.contextmanager
def hostile_engine() -> Iterator[str]:
    """Runs an Engine, and yields its address."""
    for index in ANSWERS:
        answer_for(index)
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def search(url: str, index: str, body: bytes | None = None, **headers: str) -> int:
    """Sends a search that asks to be re-ranked, and returns the status."""
    content = json.dumps(MATCH).encode() if body is None else body
    sent = HEADERS | {name.replace("_", "-"): value for name, value in headers.items()}
    return status_of(url, "POST", f"/{index}/_search", content=content, headers=sent)


def register(name: str, run: Callable[[str], set[int]], *, quick: bool = False) -> None:
    """Registers an attack whose searches get 200, since only the re-ranking may fail, or 429."""
    PROXY_ATTACKS[name] = Attack(run, frozenset({200, 429}), quick)


for index in ANSWERS:
    register(f"{index}_at_once", lambda url, index=index: together([lambda: search(url, index)] * 6))  # type: ignore[misc]
    register(f"{index}_once", lambda url, index=index: {search(url, index)}, quick=index in {"deep", "values"})  # type: ignore[misc]

WRITTEN: Mapping[str, Callable[[], bytes]] = {
    "numbers": lambda: b'{"knn":{"vector":[' + b"0.12345678," * 600_000 + b"1]}}",
    "text": lambda: b'{"query":{"match":{"body":"' + b"man " * 3_500_000 + b'"}}}',
    "wide_text": lambda: b'{"query":{"match":{"body":"' + b"man " * 3_500_000 + "\U0001f9ea".encode() + b'"}}}',
    "deep": lambda: b'{"query":' * 200_000,
    "strings": lambda: b'{"query":{"terms":{"body":[' + b'"a",' * 1_200_000 + b'"a"]}}}',
    "clauses": lambda: (
        b'{"query":{"bool":{"should":[' + b'{"match":{"body":"man"}},' * 100_000 + b'{"match":{"body":"x"}}]}}}'
    ),
    "patterns": lambda: (
        b'{"query":{"match":{"body":"man"}},"_source":false,"fields":[' + b'"*a*b*c*",' * 100_000 + b'"x"]}'
    ),
    "nothing": lambda: b" " * 15 * MB,
}
for name, written in WRITTEN.items():
    register(f"a_search_of_{name}", lambda url, written=written: {search(url, "docs", written())})  # type: ignore[misc]

PACKED: Mapping[str, Callable[[], bytes]] = {
    "a_search_that_is_a_gzip_bomb": lambda: b'{"query":"' + b"\0" * 200 * MB,
    "a_packed_search_of_numbers": WRITTEN["numbers"],
}
for name, written in PACKED.items():
    register(
        name,
        lambda url, written=written: {search(url, "docs", gzip.compress(written()), content_encoding="gzip")},  # type: ignore[misc]
    )


def unread_answers(url: str) -> set[int]:
    body = json.dumps(MATCH).encode()
    head = RAW_HEAD.replace(b"/docs", b"/texts").replace(b": title", b": body")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connection_to(url))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(3)
        return {status_of(url, "GET", "/_bandrank/healthz")}


def searches_that_stop(url: str) -> set[int]:
    """Fifty clients announce bodies of sixteen megabytes, send a kilobyte, and reset their connections."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connection_to(url)) for _ in range(50)]
        for connection in connections:
            connection.sendall(RAW_HEAD + b"Content-Length: 16000000\r\n\r\n" + b"x" * 1000)
        time.sleep(0.5)
        for connection in connections:
            reset(connection)
        return {status_of(url, "GET", "/_bandrank/healthz")}


def searches_that_hang_up(url: str) -> set[int]:
    """Forty clients with large answers reset their connections, each after another delay."""
    body = json.dumps(MATCH).encode()
    head = RAW_HEAD.replace(b"/docs", b"/vectors")
    for number in range(40):
        with connection_to(url) as connection:
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.01 * (number % 10))
            reset(connection)
    return {search(url, "docs")}


def headers_to_rerank_by(url: str) -> set[int]:
    """The client gets its hits in spite of long, strange and repeated X-Rerank headers."""
    values = ["x" * 8000, "a," * 2000, "title;" * 500, "title; depth=" + "9" * 4000, ";=,", "title; model=", "title; x"]
    statuses = {search(url, "docs", x_rerank=value) for value in values}
    with connection_to(url) as connection:
        connection.sendall(RAW_HEAD + b"X-Rerank: title\r\n" * 50 + b"Content-Length: 2\r\n\r\n{}")
        return statuses | {answer_on(connection)}


register("unread_answers", unread_answers)
register("searches_that_stop", searches_that_stop, quick=True)
register("searches_that_hang_up", searches_that_hang_up)
register("headers_to_rerank_by", headers_to_rerank_by, quick=True)
