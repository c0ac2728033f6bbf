"""Searches through the proxy: which hits come back, in which order, and that nothing else of an answer changes."""

import gzip
import json
from typing import Any

import httpx
import pytest
from support.app import running_app
from support.proxied import Proxied, proxied
from support.scorers import lookup
from support.search_engine import SearchEngine, score_of

DOCUMENTS = [
    '{"title":"you are it","n":1.0e-7,"id":12345678901234567890}',
    '{ "title" : "she is", "tags": ["a", "b"], "deep": {"list": [{"x": null}, []]} }',
    '{"title":"man é 漢字 \\u00e9 \\ud83d\\ude00","price":1.10}',
    '{"n":0,"note":"no title here"}',
    '{"title":"he was","E":1E+2,"neg":-0.0}',
    '{"title":"man of letters"}',
]
IN_ORDER = ["4", "2", "5", "0", "1", "3"]  # he, man, man, other words, she, and no text
BODY: dict[str, Any] = {"query": {"match": {"title": "who"}}}


@pytest.fixture(autouse=True)
def _as_new(engine: SearchEngine) -> None:
    engine.seen.clear()
    engine.max_window, engine.status, engine.always_gzip = 10_000, 200, False


def search(proxy: Proxied, body: dict[str, Any], *, target: str = "/docs/_search", **headers: str) -> httpx.Response:
    """Sends a search, with `X-Rerank: title` unless said otherwise, and returns the answer."""
    sent = {"x-rerank": "title"} | {name.replace("_", "-"): value for name, value in headers.items()}
    with proxy.client() as client:
        return client.post(target, json=body, headers=sent)


def ids(response: httpx.Response) -> list[str]:
    return [hit["_id"] for hit in response.json()["hits"]["hits"]]


def status(response: httpx.Response) -> str:
    value: str = response.headers["x-rerank-status"]
    return value


def test_hits_come_in_the_order_of_relevance(proxy: Proxied, engine: SearchEngine) -> None:
    """Hits without a text come last; the engine gets the client's own body, but is asked for all hits to re-rank."""
    response = search(proxy, BODY, authorization="Basic eDp5")

    assert ids(response) == IN_ORDER
    assert status(response) == "reranked; hits=6; without_text=1"
    (asked,) = engine.seen
    assert asked.params == {"from": "0", "size": "100"}
    assert json.loads(asked.body) == BODY
    assert asked.headers[b"authorization"] == b"Basic eDp5"
    assert response.headers["x-elastic-product"] == "stand-in"


async def test_order_and_scores_are_those_of_the_endpoint(proxy: Proxied) -> None:
    hits = search(proxy, BODY).json()["hits"]
    texts = [json.loads(document).get("title") for document in DOCUMENTS]
    with_text = [index for index, text in enumerate(texts) if text]
    async with running_app(lookup(man=1.5, he=4.0, she=-2.0)) as running:
        answer = await running.rerank({"query": "who", "candidates": [texts[index] for index in with_text]})
    expected = [(str(with_text[each["index"]]), each["relevance_score"]) for each in answer.json()["results"]]

    assert [(hit["_id"], hit["_score"]) for hit in hits["hits"]] == [*expected, ("3", 0.0)]
    assert hits["max_score"] == expected[0][1]


async def test_the_scores_of_the_engine_count_as_those_of_a_first_stage(engine: SearchEngine) -> None:
    """With `first_stage_weight`, the proxy ranks as /rerank does for candidates that have the hits' scores."""
    indices = [0, 1, 2, 4, 5]  # 3 has no text
    candidates = [{"text": json.loads(DOCUMENTS[index])["title"], "score": float(score_of(index))} for index in indices]
    asked = {"query": "who", "candidates": candidates, "first_stage_weight": 0.6}
    async with running_app(lookup(man=1.5, he=4.0, she=-2.0)) as running:
        results = (await running.rerank(asked)).json()["results"]
    with proxied(engine.url, first_stage_weight=0.6) as proxy:
        response = search(proxy, BODY)
    hits = response.json()["hits"]["hits"]

    assert [(hit["_id"], hit["_score"]) for hit in hits] == [
        *((str(indices[each["index"]]), each["relevance_score"]) for each in results),
        ("3", 0.0),
    ]
    assert ids(response) != IN_ORDER


def test_nothing_but_order_and_scores_changes(proxy: Proxied, engine: SearchEngine) -> None:
    """Every other byte is the engine's: how numbers are written, spaces, escapes, and what surrounds the hits."""
    body = BODY | {"aggs": {}, "highlight": {}}
    kept = search(proxy, body, x_rerank="title; score=engine").content
    scored = search(proxy, body)
    order = [int(each) for each in IN_ORDER]
    scores = [repr(hit["_score"]) for hit in scored.json()["hits"]["hits"]]

    assert kept == engine.page([(index, score_of(index)) for index in order], score_of(0), body, {})
    assert scored.content == engine.page(list(zip(order, scores, strict=True)), scores[0], body, {})


def test_a_page_of_the_hits(proxy: Proxied, engine: SearchEngine) -> None:
    """`size` and `from`, in the body or in the query string, select a page of the re-ranked hits."""
    assert ids(search(proxy, BODY | {"size": 2})) == IN_ORDER[:2]
    assert ids(search(proxy, BODY | {"size": 2, "from": 3})) == IN_ORDER[3:5]
    assert ids(search(proxy, BODY | {"size": 99}, target="/docs/_search?size=1&from=1&routing=a%2Fb")) == IN_ORDER[1:2]
    assert engine.seen[-1].target == b"/docs/_search?routing=a%2Fb&from=0&size=100"
    assert ids(search(proxy, BODY | {"from": 50})) == []


def test_a_search_in_the_query_string(proxy: Proxied, engine: SearchEngine) -> None:
    """A GET without a body is a search, too."""
    with proxy.client() as client:
        response = client.get("/docs/_search?q=who&_source=false&size=3", headers={"x-rerank": "title"})

    assert ids(response) == IN_ORDER[:3]
    assert all(hit.keys() == {"_index", "_id", "_score"} for hit in response.json()["hits"]["hits"])
    (asked,) = engine.seen
    assert (asked.method, json.loads(asked.body)) == ("GET", {"fields": ["title"]})
    assert asked.headers[b"content-type"] == b"application/json"


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        ({"_source": False}, {"_index", "_id", "_score"}),
        ({"_source": ["n"]}, {"_index", "_id", "_score", "_source"}),
        ({"_source": False, "fields": ["n"]}, {"_index", "_id", "_score", "fields"}),
        ({"_source": False, "fields": ["title"]}, {"_index", "_id", "_score", "fields"}),
    ],
)
def test_a_client_that_leaves_the_text_out(proxy: Proxied, wanted: dict[str, Any], keys: set[str]) -> None:
    """The client gets the hits in order, with what it asked for and nothing else."""
    response = search(proxy, BODY | wanted)
    hits = response.json()["hits"]["hits"]

    assert ids(response) == IN_ORDER
    assert set().union(*hits) == keys
    for hit in hits:
        source = json.loads(DOCUMENTS[int(hit["_id"])])
        names = wanted["_source"] or []
        assert hit.get("_source", {}) == {name: source[name] for name in names if name in source}
        assert hit.get("fields", {}) == {name: [source[name]] for name in wanted.get("fields", []) if name in source}


def test_the_query_may_be_in_a_header(proxy: Proxied) -> None:
    """The percent-encoded query overrides what the body has, and serves where the body has none."""
    response = search(proxy, {"query": {"match_all": {}}}, x_rerank_query="wer%3F%20%C3%A9")

    assert ids(response) == IN_ORDER


def test_a_compressed_search(proxy: Proxied, engine: SearchEngine) -> None:
    """The proxy finds the query, and sends the search uncompressed to the engine, which answers uncompressed."""
    headers = {
        "x-rerank": "title",
        "content-encoding": "gzip",
        "content-type": "application/vnd.elasticsearch+json;compatible-with=8",
        "accept-encoding": "gzip",
    }
    with proxy.client() as client:
        response = client.post("/docs/_search", content=gzip.compress(json.dumps(BODY).encode()), headers=headers)

    assert ids(response) == IN_ORDER
    assert json.loads(engine.seen[0].body) == BODY
    assert engine.seen[0].headers[b"accept-encoding"] == b"identity"
    assert engine.seen[0].headers[b"content-type"] == headers["content-type"].encode()


def test_a_rule_asks_where_clients_do_not(engine: SearchEngine, tmp_path: Any) -> None:
    """A rule applies to the indices that it names; a header overrides it, and can switch it off."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nindex = "doc*"\nfields = ["title"]\ndepth = 4\n')
    with proxied(engine.url, proxy_rules=str(rules)) as proxy, proxy.client() as client:
        by_rule = client.post("/docs/_search", json=BODY | {"size": 4})
        deeper = client.post("/docs,documents/_search", json=BODY, headers={"x-rerank": "; depth=6"})
        off = client.post("/docs/_search", json=BODY, headers={"x-rerank": "off"})
        other = client.post("/docs,books/_search", json=BODY)

    assert ids(by_rule) == ["2", "0", "1", "3"]
    assert status(deeper) == "skipped; reason=beyond_depth"
    assert status(off) == "skipped; reason=off"
    assert "x-rerank-status" not in other.headers
    assert ids(other) == ids(off) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("accept", ["application/yaml", "Application/vnd.elasticsearch+cbor;compatible-with=8"])
def test_a_search_that_wants_no_json_is_sent_once(proxy: Proxied, engine: SearchEngine, accept: str) -> None:
    """The search passes through unchanged, because the proxy could not read the answer to a deeper one."""
    response = search(proxy, BODY, accept=accept)

    assert status(response) == "skipped; reason=partial_answer"
    assert [asked.target for asked in engine.seen] == [b"/docs/_search"]


@pytest.mark.parametrize(
    ("body", "query", "header", "reason"),
    [
        (BODY | {"size": 0}, "", "title", "no_hits_wanted"),
        (BODY | {"size": 51, "from": 50}, "", "title", "beyond_depth"),
        (BODY | {"sort": ["date"]}, "", "title", "sorted"),
        (BODY | {"search_after": [1]}, "", "title", "paged"),
        (BODY | {"explain": True}, "", "title", "explained"),
        (BODY, "?scroll=1m", "title", "paged"),
        (BODY, "?filter_path=hits.hits._id", "title", "partial_answer"),
        ({"query": {"match_all": {}}}, "", "title", "no_query"),
        ({"query": {"bool": {"must": [{"match": {"a": "x"}}, {"match": {"b": "y"}}]}}}, "", "title", "ambiguous_query"),
        (BODY, "", "title; depth=many", "bad_header"),
        (BODY, "", "title; colour=red", "bad_header"),
        (BODY, "", "title; depth=100000", "bad_header"),
        (BODY | {"_source": False}, "", "t*", "bad_header"),
    ],
)
def test_what_cannot_be_re_ranked_passes_through(  # noqa: PLR0917
    proxy: Proxied, engine: SearchEngine, body: dict[str, Any], query: str, header: str, reason: str
) -> None:
    """The engine gets the search unchanged, the client gets its answer, and a header says why."""
    response = search(proxy, body, target=f"/docs/_search{query}", x_rerank=header)
    everything = [str(index) for index in range(len(DOCUMENTS))]

    assert status(response) == f"skipped; reason={reason}"
    assert ids(response) == everything[body.get("from", 0) :][: body.get("size", 10)]
    (asked,) = engine.seen
    assert asked.target == f"/docs/_search{query}".encode()
    assert json.loads(asked.body) == body


def test_other_requests_are_never_marked(proxy: Proxied, engine: SearchEngine) -> None:
    """Neither a search that nobody asked to re-rank nor a request that is not a search gets X-Rerank-Status."""
    with proxy.client() as client:
        answers = [
            client.post("/docs/_search", json=BODY),
            client.post("/docs/_count", json=BODY, headers={"x-rerank": "title"}),
            client.post("/_msearch/template", content=b"{}\n{}\n", headers={"x-rerank": "title"}),
            client.delete("/docs", headers={"x-rerank": "title"}),
            client.head("/docs", headers={"x-rerank": "title"}),
        ]

    assert [answer.status_code for answer in answers] == [200] * 5
    assert not any("x-rerank-status" in answer.headers for answer in answers)
    assert [asked.method for asked in engine.seen] == ["POST", "POST", "POST", "DELETE", "HEAD"]
