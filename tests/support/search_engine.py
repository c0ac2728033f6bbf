"""A stand-in for OpenSearch, built from its documented search API, that records what it is sent.

It has one index, whose documents match every query in the order in which they are given, and the options of `_search`
that the tests use: size, from, `_source`, `fields`, highlight, aggregations, gzip, and the limit of a result window. In
an `_msearch` every index is that one, except `missing`. All other requests are acknowledged.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from starlette.types import Receive, Scope, Send
from support.certificates import Certificate
from support.threaded import served

JSON = b"application/json; charset=UTF-8"
HEAD_KEYS = {"index", "preference", "routing", "search_type"}  # allowed before a search in `_msearch`
MISSING = b'{"error":{"type":"index_not_found_exception","reason":"no such index [missing]"},"status":404}'


@dataclass(frozen=True)
class Recorded:
    """A request as the engine got it; the names of headers are in lower case."""

    method: str
    target: bytes
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def params(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition(b"?")[2].decode()))


@dataclass
class SearchEngine:
    """documents: the JSON of each `_source`, as it was indexed.  max_window: the most that from + size may be.

    status: that of all answers to searches.  always_gzip: whether all answers are compressed.  seen: all requests.
    """

    documents: Sequence[str]
    max_window: int = 10_000
    status: int = 200
    always_gzip: bool = False
    seen: list[Recorded] = field(default_factory=list)
    url: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        asked = Recorded(scope["method"], target, dict(scope["headers"]), b"".join(parts))
        self.seen.append(asked)
        status, answer = self.answer(asked)
        headers = [(b"content-type", JSON), (b"x-elastic-product", b"stand-in")]
        if self.always_gzip or b"gzip" in asked.headers.get(b"accept-encoding", b""):
            answer = gzip.compress(answer, mtime=0)
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", b"%d" % len(answer)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def answer(self, asked: Recorded) -> tuple[int, bytes]:
        """Status and body of the answer to a request."""
        path = asked.target.partition(b"?")[0]
        if not path.endswith((b"/_search", b"/_msearch")):
            return 200, b'{"acknowledged":true}'
        if self.status != 200:
            return self.status, b'{"error":{"type":"stand_in_exception","reason":"told to"},"status":%d}' % self.status
        raw = gzip.decompress(asked.body) if asked.headers.get(b"content-encoding") == b"gzip" else asked.body
        if path.endswith(b"/_msearch"):
            return self.multi_search(raw)
        return self.search(json.loads(raw or b"{}"), asked.params)

    def multi_search(self, content: bytes) -> tuple[int, bytes]:
        """The answer to several searches, of which each may fail by itself."""
        *lines, rest = content.split(b"\n")
        try:
            heads = [json.loads(head or b"{}") for head in lines[::2]]
            refused = bool(rest) or any(head.keys() - HEAD_KEYS for head in heads)
        except (ValueError, AttributeError, RecursionError):
            refused = True
        if refused:
            return 400, b'{"error":{"type":"illegal_argument_exception","reason":"no such request"},"status":400}'
        answers = []
        for head, body in zip(heads, lines[1::2], strict=False):
            status, answer = (404, MISSING) if head.get("index") == "missing" else self.search(json.loads(body), {})
            answers.append(answer if status != 200 else answer[:-1] + b',"status":200}')
        return 200, b'{"took" : 7, "responses" : [ %b ]}' % b" , ".join(answers)

    def search(self, body: Mapping[str, Any], params: Mapping[str, str]) -> tuple[int, bytes]:
        """The answer to a search; parameters of its URL override its body."""
        start, size = int(params.get("from", body.get("from", 0))), int(params.get("size", body.get("size", 10)))
        if start + size > self.max_window:
            return 400, b'{"error":{"type":"illegal_argument_exception","reason":"too large a window"},"status":400}'
        page = range(len(self.documents))[start : start + size]
        most = score_of(0) if page else "null"
        return 200, self.page([(index, score_of(index)) for index in page], most, body, params)

    def page(
        self, hits: Sequence[tuple[int, str]], most: str, body: Mapping[str, Any], params: Mapping[str, str]
    ) -> bytes:
        """The answer with these documents, each with its `_score`, and with this `max_score`."""
        wanted = params.get("_source", body.get("_source", True))
        listed = ",".join(self.hit(index, score, wanted, body) for index, score in hits)
        total = f'"total":{{"value":{len(self.documents)},"relation":"eq"}}'
        aggregations = ',"aggregations":{"sum":{"value":1.2345678901234567e19}}' if "aggs" in body else ""
        return (
            '{"took":3,"timed_out":false,"_shards":{"total":1,"successful":1,"skipped":0,"failed":0},'
            f'"hits":{{{total},"max_score":{most},"hits":[{listed}]}}{aggregations}}}'
        ).encode()

    def hit(self, index: int, score: str, wanted: object, body: Mapping[str, Any]) -> str:
        """The JSON of a hit. Its `_source` is as it was indexed, unless it is filtered."""
        source = json.loads(self.documents[index])
        members = [f'"_index":"docs","_id":"{index}","_score":{score}']
        if wanted is True or wanted == "true":
            members.append(f'"_source":{self.documents[index]}')
        elif wanted is not False and wanted != "false":
            names = wanted if isinstance(wanted, list) else str(wanted).split(",")
            kept = {name: source[name] for name in names if name in source}
            members.append(f'"_source":{json.dumps(kept, ensure_ascii=False)}')
        if found := {name: [source[name]] for name in body.get("fields", []) if name in source}:
            members.append(f'"fields":{json.dumps(found, ensure_ascii=False)}')
        if "highlight" in body and "title" in source:
            members.append('"highlight":{"title":["<em>' + source["title"].split()[0] + '</em>"]}')
        return "{" + ",".join(members) + "}"


def score_of(index: int) -> str:
    """The `_score` of the hit at an index, in a form that not every JSON library would write again unchanged."""
    return f"{9.5 - index / 4:.3f}e0"


@contextmanager
def running_engine(engine: SearchEngine, certificate: Certificate | None = None) -> Iterator[SearchEngine]:
    """Runs the engine on a free port. certificate: makes it speak HTTPS."""
    tls = {} if certificate is None else {"ssl_certfile": certificate.certificate, "ssl_keyfile": certificate.key}
    quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "date_header": False}
    with served(uvicorn.Config(engine, **quiet, **tls)) as (_, port):
        engine.url = f"{'https' if tls else 'http'}://localhost:{port}"
        yield engine
