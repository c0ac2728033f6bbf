"""Searches that come together in an `_msearch`: each is re-ranked, left alone or fails as if it had come alone."""

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.poison import fails
from support.proxied import Proxied, proxied
from support.scorers import Gate, WatchedScorer, lookup
from support.search_engine import MISSING, SearchEngine

from bandrank.proxy.multi_request import MAX_SEARCHES, indices_in, read_lines
from bandrank.proxy.outcomes import Skipped

DOCUMENTS = ['{"title":"she"}', '{"title":"man é"}', '{"title":"he","n":1.0e-7}', '{"title":"p"}']
MATCH: dict[str, Any] = {"query": {"match": {"title": "who"}}}
ALL = {"query": {"match_all": {}}}
RULES = """
[[rules]]
index = "books"
fields = ["title"]
depth = 3

[[rules]]
index = "b*"
fields = ["title"]
depth = 4
"""


@pytest.fixture(scope="module")
def ruled(engine: SearchEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """A proxy with rules, whose model fails on the last document."""
    rules: Path = tmp_path_factory.mktemp("rules") / "rules.toml"
    rules.write_text(RULES)
    scorer = WatchedScorer(lookup(man=1.5, he=4.0, she=-2.0), fails)
    with proxied(engine.url, scorer=scorer, proxy_rules=str(rules)) as running:
        yield running


@pytest.fixture(autouse=True)
def _as_new(engine: SearchEngine) -> None:
    engine.seen.clear()
    engine.max_window, engine.status = 10_000, 200


def lines(*searches: dict[str, Any]) -> bytes:
    """The body of a request: the two lines of each search."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in searches)


def send(proxy: Proxied, content: bytes, *, target: str = "/docs/_msearch", **headers: str) -> httpx.Response:
    """Sends several searches, with `X-Rerank: title` unless said otherwise, and returns the answer."""
    sent = {"x-rerank": "title", "content-type": "application/x-ndjson"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    with proxy.client() as client:
        return client.post(target, content=content, headers={name: value for name, value in sent.items() if value})


def ids(response: httpx.Response) -> list[str]:
    return ["".join(hit["_id"] for hit in each["hits"]["hits"]) for each in response.json()["responses"]]


def statuses(response: httpx.Response) -> list[str]:
    return response.headers["x-rerank-status"].split(", ")  # type: ignore[no-any-return]


def test_each_search_is_re_ranked(proxy: Proxied, engine: SearchEngine) -> None:
    """Each search gets its page of its hits, by one request to the engine; nothing else of the answer changes."""
    second = MATCH | {"size": 1, "from": 1, "_source": False}
    content = lines({}, MATCH, {"index": "other", "preference": "x"}, second)
    response = send(proxy, content, target="/docs/_msearch?typed_keys=true", x_rerank="title; score=engine")

    assert ids(response) == ["2130", "1"]
    assert statuses(response) == ["reranked; hits=4"] * 2
    assert response.headers["x-elastic-product"] == "stand-in"
    (asked,) = engine.seen
    assert asked.target == b"/docs/_msearch?typed_keys=true"
    assert asked.headers[b"content-type"] == b"application/x-ndjson"
    heads, bodies = ([json.loads(line) for line in asked.body.splitlines()[start::2]] for start in (0, 1))
    assert heads == [{}, {"index": "other", "preference": "x"}]
    assert bodies == [MATCH | {"size": 100}, second | {"from": 0, "size": 100, "fields": ["title"]}]
    hits = [hit for each in response.json()["responses"] for hit in each["hits"]["hits"]]
    assert hits[-1].keys() == {"_index", "_id", "_score"}
    _, plain = engine.multi_search(content)
    order = [plain.index(b'{"_index":"docs","_id":"%d"' % index) for index in range(4)]
    ends = [*(at - 1 for at in order[1:]), plain.index(b"]", order[3])]
    pieces = [plain[at:end] for at, end in zip(order, ends, strict=True)]
    ranked = b",".join(pieces[index] for index in (2, 1, 3, 0))
    first = plain.index(b" , ")
    assert response.content[:first] == plain[: order[0]] + ranked + plain[ends[3] : first]


def test_a_search_gets_what_it_would_get_alone(proxy: Proxied) -> None:
    with proxy.client() as client:
        alone = client.post("/docs/_search", json=MATCH, headers={"x-rerank": "title"})
    response = send(proxy, lines({}, MATCH))

    assert response.headers["x-rerank-status"] == alone.headers["x-rerank-status"]
    assert response.content == b'{"took" : 7, "responses" : [ %b,"status":200} ]}' % alone.content[:-1]


def test_the_header_counts_for_all_searches(proxy: Proxied) -> None:
    """X-Rerank-Query counts for all searches, too; those that cannot be re-ranked are skipped one by one."""
    searches = lines({}, MATCH, {}, MATCH | {"size": 0}, {}, ALL, {}, MATCH | {"sort": ["n"]})
    response = send(proxy, searches)

    assert statuses(response) == [
        "reranked; hits=4",
        "skipped; reason=no_hits_wanted",
        "skipped; reason=no_query",
        "skipped; reason=sorted",
    ]
    assert ids(response) == ["2130", "", "0123", "0123"]
    assert ids(send(proxy, searches, x_rerank_query="who")) == ["2130", "", "2130", "0123"]


def test_rules_count_for_the_indices_of_each_search(ruled: Proxied, engine: SearchEngine) -> None:
    """The first line of a search names its indices, else the path does; without a rule it passes through unchanged."""
    other = b'{"index":["books","docs"]}\n { "query":{"match":{"title":"who"}} } \r\n'
    named = lines({"index": ["books"]}, MATCH | {"size": 3}, {"index": "books,books"}, MATCH | {"size": 1})
    response = send(ruled, named + other + b"\n" + lines(MATCH | {"size": 2}), target="/books/_msearch", x_rerank="")

    assert statuses(response) == ["reranked; hits=3", "reranked; hits=3", "passed", "reranked; hits=3"]
    assert ids(response) == ["210", "2", "0123", "21"]
    assert other in engine.seen[0].body


def test_searches_that_nobody_asks_to_re_rank_pass_through(
    proxy: Proxied, ruled: Proxied, engine: SearchEngine
) -> None:
    """The engine gets the body unchanged, the answer has no status, and all of them count as one request."""
    content = lines({"index": "docs"}, MATCH)
    before = ruled.count("proxy_requests", outcome="passed")
    responses = [send(each, content, target="/_msearch", x_rerank="") for each in (proxy, ruled)]

    assert all("x-rerank-status" not in each.headers for each in responses)
    assert [asked.body for asked in engine.seen] == [content] * 2
    ruled.wait_for_count("proxy_requests", before + 1, outcome="passed")


def test_a_search_that_fails_costs_the_others_nothing(ruled: Proxied) -> None:
    """Whether the engine or the model fails, the others are re-ranked, and each search counts by its own outcome."""
    outcomes = ("reranked", "skipped", "failed", "passed")
    before = {outcome: ruled.count("proxy_requests", outcome=outcome) for outcome in outcomes}
    choked = ruled.count("proxy_unranked", reason="scoring_failed")
    content = lines(
        {"index": "books"}, MATCH | {"size": 3}, {"index": "missing"}, MATCH,
        {"index": "boats"}, MATCH | {"size": 4}, {}, MATCH,
    )  # fmt: skip
    response = send(ruled, content, target="/_msearch", x_rerank="")

    assert statuses(response) == ["reranked; hits=3", "passed", "failed; reason=scoring_failed", "passed"]
    assert [len(each) for each in response.json()["responses"]] == [5, 2, 5, 5]
    for outcome, more in zip(outcomes, (1, 0, 1, 2), strict=True):
        ruled.wait_for_count("proxy_requests", before[outcome] + more, outcome=outcome)
    assert ruled.count("proxy_unranked", reason="scoring_failed") == choked + 1


def test_an_error_that_a_search_would_get_anyway(proxy: Proxied, engine: SearchEngine) -> None:
    """The client gets the error, and the proxy does not ask the engine again."""
    response = send(proxy, lines({"index": "missing"}, MATCH, {}, MATCH))

    assert statuses(response) == ["skipped; reason=engine_error", "reranked; hits=4"]
    assert MISSING in response.content
    assert len(engine.seen) == 1


def test_a_window_that_the_engine_refuses(ruled: Proxied, engine: SearchEngine) -> None:
    """One second request has the client's own searches for those that were refused; the others are not sent twice."""
    engine.max_window = 3
    content = lines({"index": "boats"}, MATCH | {"size": 2}, {"index": "books"}, MATCH | {"size": 2}, {}, MATCH)
    content += lines({"index": "boats"}, MATCH | {"size": 4})
    response = send(ruled, content, target="/_msearch", x_rerank="")

    assert statuses(response) == [
        "failed; reason=engine_refused",
        "reranked; hits=3",
        "passed",
        "skipped; reason=engine_error",
    ]
    answers = response.json()["responses"]
    assert [[hit["_id"] for hit in each["hits"]["hits"]] for each in answers[:2]] == [["0", "1"], ["2", "1"]]
    assert [each["status"] for each in answers] == [200, 200, 400, 400]
    own = content.splitlines(keepends=True)
    assert engine.seen[1].body == b"".join([*own[:2], *own[6:]])


def test_an_answer_that_is_too_large(engine: SearchEngine) -> None:
    """The proxy then sends the client's own request, with all its searches."""
    content = lines({}, MATCH, {}, MATCH | {"size": 0})
    with proxied(engine.url, proxy_max_response_bytes=300) as proxy:
        response = send(proxy, content)

    assert statuses(response) == ["failed; reason=large_answer", "skipped; reason=no_hits_wanted"]
    assert ids(response) == ["0123", ""]
    assert engine.seen[1].body == content


@pytest.mark.parametrize("answer", [b"{}", b'{"responses":{}}', b'{"responses":[]}', b'{"responses":[{},{}]}', b"["])
def test_an_answer_that_is_not_as_expected(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(engine, "multi_search", lambda _: (200, answer))
    with proxied(engine.url) as proxy:
        response = send(proxy, lines({}, MATCH))

    assert response.content == answer
    assert statuses(response) == ["failed; reason=unreadable_answer"]


@pytest.mark.parametrize("status", [401, 429])
def test_an_error_for_the_whole_request(proxy: Proxied, engine: SearchEngine, status: int) -> None:
    """The client gets the error, which does not count as failed re-ranking."""
    engine.status = status
    response = send(proxy, lines({}, MATCH, {}, ALL))

    assert response.status_code == status
    assert statuses(response) == ["skipped; reason=engine_error", "skipped; reason=no_query"]
    assert len(engine.seen) == (1 if status == 401 else 2)


def test_all_searches_share_the_time(engine: SearchEngine, tmp_path: Path) -> None:
    """While the model hangs on the first search, the second one's shorter budget runs out: its scoring never starts."""
    rules = tmp_path / "rules.toml"
    rules.write_text("".join(
        f'[[rules]]\nindex = "{index}"\nfields = ["title"]\nbudget_ms = {budget_ms}\n'
        for index, budget_ms in (("long", 100), ("short", 20))
    ))  # fmt: skip
    gate = Gate()
    gate.let_through()
    scorer = WatchedScorer(lookup(man=1.0), gate)
    with proxied(engine.url, scorer=scorer, proxy_rules=str(rules)) as proxy:
        try:
            response = send(
                proxy, lines({"index": "long"}, MATCH, {"index": "short"}, MATCH | {"size": 2}), x_rerank=""
            )
        finally:
            gate.let_through(10)
        begun = proxy.count("dropped_tasks")

    assert statuses(response) == ["failed; reason=deadline_exceeded"] * 2
    assert ids(response) == ["0123", "01"]
    assert begun == 1


def test_a_compressed_request(proxy: Proxied, engine: SearchEngine) -> None:
    """The engine gets the client's media type, which may be Elasticsearch's own."""
    kind = "application/vnd.elasticsearch+x-ndjson;compatible-with=8"
    packed = gzip.compress(lines({}, MATCH))
    response = send(proxy, packed, content_type=kind, content_encoding="gzip", accept_encoding="gzip")

    assert ids(response) == ["2130"]
    assert engine.seen[0].headers[b"content-type"] == kind.encode()


@pytest.mark.parametrize("end", [b"", b"\n", b" \n"])
def test_a_line_more_at_the_end(proxy: Proxied, end: bytes) -> None:
    """The engines ignore an empty last line."""
    assert statuses(send(proxy, lines({}, MATCH) + end)) == ["reranked; hits=4"]


@pytest.mark.parametrize(
    ("content", "headers", "reason"),
    [
        (lines({}, MATCH)[:-1], {}, "unreadable_request"),
        (b"\n" + lines(MATCH), {}, "unreadable_request"),
        (lines({}, MATCH, {}), {}, "unreadable_request"),
        (lines({"index": 1}, MATCH), {}, "unreadable_request"),
        (lines({"index": [["a"]]}, MATCH), {}, "unreadable_request"),
        (b"[]\n{}\n", {}, "unreadable_request"),
        (b"{\n{}\n", {}, "unreadable_request"),
        (b"\xff\n{}\n", {}, "unreadable_request"),
        (b"[" * 100_000 + b"\n{}\n", {}, "unreadable_request"),
        (b"", {}, "unreadable_request"),
        (lines({}, MATCH), {"content_type": "application/cbor"}, "unreadable_request"),
        (lines({}, MATCH) * (MAX_SEARCHES + 1), {}, "large_request"),
        (lines({}, MATCH), {"x_rerank": "title; depth=0"}, "bad_header"),
        (lines({}, MATCH), {"x_rerank_query": "%ff"}, "bad_header"),
        (lines({}, MATCH), {"x_rerank": "off"}, "off"),
        (lines({}, MATCH), {"target": "/_msearch?filter_path=responses.hits"}, "partial_answer"),
    ],
)
def test_requests_that_pass_through(
    proxy: Proxied, engine: SearchEngine, content: bytes, headers: dict[str, str], reason: str
) -> None:
    response = send(proxy, content, **headers)

    assert statuses(response) == [f"skipped; reason={reason}"]
    assert [asked.body for asked in engine.seen] == [content]


def test_as_many_as_there_may_be(proxy: Proxied) -> None:
    """X-Rerank-Status lists the outcome of each search within the 4 KiB that many servers allow for all headers."""
    response = send(proxy, lines({}, MATCH) * MAX_SEARCHES, x_rerank="title; budget_ms=60000")

    assert ids(response) == ["2130"] * MAX_SEARCHES
    assert len(response.headers["x-rerank-status"]) < 3500


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=9) | st.sampled_from([b"{}", b'{"index":"a,b"}', b'{"indices":["a"]}', b"\r"])))
def test_any_request_is_read_or_left_alone(content: list[bytes]) -> None:
    """Reading a request never raises anything but Skipped, and yields its lines."""
    with contextlib.suppress(Skipped):
        read = [*read_lines(b"\n".join(content) + b"\n")]
        assert b"".join(b"%b\n%b\n" % pair for pair in read).startswith(b"\n".join(content[:2]))
        for head, _ in read:
            assert all(isinstance(name, str) for name in indices_in(head, ["of the path"]))
