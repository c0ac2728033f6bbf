"""What a header, a rule or the search itself asks of the proxy, and the deeper search that it sends for it."""

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandrank.errors import BadSetting
from bandrank.proxy.fetching import unpacked
from bandrank.proxy.outcomes import Skipped, SkipReason
from bandrank.proxy.query_text import query_text
from bandrank.proxy.raw_json import Number
from bandrank.proxy.rerank_options import RerankOptions, RerankRules, query_of_header, read_rules
from bandrank.proxy.search_request import MAX_WIDE_BYTES, indices_of, read_search

OPTIONS = RerankOptions(fields=("title", "body"), depth=50, budget_ms=100)
MATCH = {"match": {"title": "words"}}


def rules_of(*rules: Any) -> RerankRules:
    """The options of a proxy with these rules."""
    return RerankRules(rules, depth=100, budget_ms=1000, max_depth=200)


def asked(value: str) -> RerankOptions:
    options = rules_of().options_for([(b"x-rerank", value.encode("latin-1"))], ["docs"])
    assert options is not None
    return options


def refusal(value: str) -> str:
    with pytest.raises(Skipped) as refused:
        asked(value)
    return refused.value.marks[0].reason


def test_a_header_names_fields_and_parameters() -> None:
    """Spaces do not count, and what the header leaves out has its default."""
    assert asked("title") == RerankOptions(fields=("title",), depth=100, budget_ms=1000)
    assert asked(" title ,a.b;depth = 7; model=org/m;strategy=fast;budget_ms=2.5 ; score=engine") == RerankOptions(
        fields=("title", "a.b"), depth=7, model="org/m", strategy="fast", budget_ms=2.5, score="engine"
    )


@pytest.mark.parametrize(
    "value",
    ["", ";", ",", "title,", "title;depth", "title;depth=", "title;depth=0", "title;depth=-1", "title;depth=1.5",
     "title;depth=201", "title;depth=1;depth=2", "title;budget_ms=0", "title;budget_ms=nan", "title;budget_ms=1e9",
     "title;fields=a", "title;score=odd", "title;x=y", ",".join("abcdefghijklmnopq"), "x" * 257,
     "*", "t*", "title,a.*", "title*;depth=5", "depth=5", "title, depth=5"],
)  # fmt: skip
def test_a_header_that_cannot_be_used(value: str) -> None:
    assert refusal(value) == SkipReason.BAD_HEADER


@pytest.mark.parametrize(
    ("sent", "name"), [("本文".encode(), "本文"), ("Größe".encode(), "Größe"), (b"Gr\xf6\xdfe", "Größe")]
)
def test_a_field_with_a_name_beyond_ascii(sent: bytes, name: str) -> None:
    """Header values are bytes; clients send names beyond ASCII in UTF-8 or in Latin-1."""
    options = rules_of().options_for([(b"x-rerank", sent + b"; depth=7")], ["docs"])

    assert options is not None
    assert (options.fields, options.depth) == ((name,), 7)


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_any_header_is_used_or_refused(value: str) -> None:
    with contextlib.suppress(Skipped):
        assert asked(value).fields


def test_several_headers_are_refused() -> None:
    """Nothing says which of several headers counts."""
    for name, read in (
        (b"x-rerank", lambda lines: rules_of().options_for(lines, [])),
        (b"x-rerank-query", query_of_header),
    ):
        with pytest.raises(Skipped):
            read([(name, b"a"), (name, b"b")])


@settings(max_examples=40)
@given(st.text(min_size=1).filter(str.strip))
def test_a_query_in_a_header(text: str) -> None:
    """The header carries any text, percent-encoded."""
    try:
        sent = quote(text)
    except UnicodeEncodeError:
        return
    assert query_of_header([(b"x-rerank-query", sent.encode())]) == text


@pytest.mark.parametrize("value", [b"", b"%20", b"%ff", b"\xff"])
def test_a_query_in_a_header_that_cannot_be_used(value: bytes) -> None:
    with pytest.raises(Skipped, match="bad_header"):
        query_of_header([(b"x-rerank-query", value)])


def test_rules(tmp_path: Path) -> None:
    """The first rule that covers all indices of a search applies; a header overrides it, parameter by parameter."""
    file = tmp_path / "rules.toml"
    file.write_text(
        '[[rules]]\nindex = "books"\nfields = ["title", "text"]\nstrategy = "fast"\n'
        '[[rules]]\nindex = "b*"\nfields = ["body"]\ndepth = 9\nbudget_ms = 5\n'
    )
    known = rules_of(*read_rules(file, max_depth=200))

    of_books = RerankOptions(fields=("title", "text"), depth=100, strategy="fast", budget_ms=1000)
    assert known.options_for([], ["books"]) == of_books
    assert known.options_for([], ["books", "boats"]) == RerankOptions(fields=("body",), depth=9, budget_ms=5)
    of_boats = RerankOptions(fields=("body",), depth=3, budget_ms=5)
    for header in (b"; depth=3", b"depth=3"):
        assert known.options_for([(b"x-rerank", header)], ["boats"]) == of_boats
    for indices in ([], ["docs"], ["books", "docs"]):
        assert known.options_for([], indices) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "rules is missing"),
        ("rules = []", "rules must have at least 1 item, got []"),
        ('[[rules]]\nindex = "a"', "rules[0].fields is missing"),
        ('[[rules]]\nindex = "a"\nfields = []', "rules[0].fields must have at least 1 item, got []"),
        ('[[rules]]\nindex = "a"\nfields = ["b*"]', "rules[0].fields[0] must be without wildcards, got 'b*'"),
        ('[[rules]]\nindex = "a"\nfields = ["b"]\ndepht = 1', "rules[0].depht is not a setting"),
        ('[[rules]]\nindex = "a"\nfields = ["b"]\ndepth = 0', "rules[0].depth must be greater than 0"),
        ('[[rules]]\nindex = "a"\nfields = ["b"]\ndepth = 201', "a has a depth beyond 200"),
    ],
)
def test_rules_that_cannot_be_used(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(BadSetting) as refused:
        read_rules(file, max_depth=200)
    assert str(refused.value).startswith(f"{file}: {expected}")


@pytest.mark.parametrize(
    "query",
    [
        MATCH,
        {"match": {"title": {"query": "words", "operator": "and"}}},
        {"match_phrase": {"title": "words"}},
        {"multi_match": {"query": "words", "fields": ["a", "b"]}},
        {"query_string": {"query": "words"}},
        {"simple_query_string": {"query": "words"}},
        {"neural": {"embedding": {"query_text": "words", "model_id": "m", "k": 5}}},
        {"bool": {"must": MATCH, "filter": [{"match": {"lang": "en"}}], "must_not": [{"match": {"a": "b"}}]}},
        {"bool": {"should": [MATCH, {"match_phrase": {"body": "words"}}, {"term": {"a": "b"}}]}},
        {"hybrid": {"queries": [MATCH, {"neural": {"e": {"query_text": "words"}}}]}},
        {"function_score": {"query": {"dis_max": {"queries": [MATCH]}}, "functions": []}},
        {"nested": {"path": "a", "query": {"match": {"a.b": "words"}}}},
        {"semantic": {"field": "a", "query": "words"}},
    ],
)
def test_the_query_is_found(query: dict[str, Any]) -> None:
    """The query is found in every clause that takes a user's words, however clauses and retrievers are combined."""
    assert query_text({"query": query}) == "words"
    assert query_text({"retriever": {"standard": {"query": query}}}) == "words"
    joined = [{"standard": {"query": query}}, {"knn": {"field": "a", "query_vector": [1]}}]
    assert query_text({"retriever": {"rrf": {"retrievers": joined}}}) == "words"
    weighed = [{"retriever": each, "weight": 2} for each in joined]
    for kind in ("linear", "rrf"):
        assert query_text({"retriever": {kind: {"retrievers": weighed}}}) == "words"


@pytest.mark.parametrize("kind", ["linear", "rrf"])
def test_the_query_of_a_retriever_for_several_fields(kind: str) -> None:
    """A retriever of this kind has the words themselves, and no inner retrievers."""
    assert query_text({"retriever": {kind: {"query": "words", "fields": ["title", "body"]}}}) == "words"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "no_query"),
        ({"query": {"match_all": {}}}, "no_query"),
        ({"query": {"match": {"title": " "}}}, "no_query"),
        ({"query": {"match": {"year": Number("1984")}}}, "no_query"),
        ({"query": {"bool": {"filter": [MATCH]}}}, "no_query"),
        ({"query": "words"}, "no_query"),
        ({"query": {"bool": ["a"], "match": None}}, "no_query"),
        ({"query": {"bool": {"must": [MATCH, {"match": {"a": "other"}}]}}}, "ambiguous_query"),
        ({"query": MATCH, "retriever": {"standard": {"query": {"match": {"a": "other"}}}}}, "ambiguous_query"),
    ],
)
def test_a_query_that_is_not_found(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(Skipped, match=reason):
        query_text(body)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", b"/_search", ()),
        ("POST", b"/docs/_search", ("docs",)),
        ("POST", b"/docs/_search/", ("docs",)),
        ("POST", b"/a*,-ab,b/_search", ("a*", "b")),
        ("POST", b"/a,b-*,%C3%A9/_search", ("a", "b-*", "é")),
        ("PUT", b"/docs/_search", None),
        ("GET", b"/docs/_search/template", None),
        ("GET", b"/_search/scroll", None),
        ("POST", b"/docs/_msearch", None),
        ("GET", b"/a/b/_search", None),
        ("GET", b"/_all/_search", ("_all",)),
        ("POST", b"/_scripts/_search", None),
        ("POST", b"/docs,%5Fscripts/_search", None),
    ],
)
def test_searches_are_known_by_their_paths(method: str, path: bytes, expected: tuple[str, ...] | None) -> None:
    assert indices_of(method, path) == expected


def deeper(body: Any, query_string: bytes = b"") -> tuple[bytes, bytes]:
    """The query string and the body of the deeper search that replaces this one."""
    search = read_search(OPTIONS, query_string, body if isinstance(body, bytes) else json.dumps(body).encode(), None)
    return search.target_query, search.body


def test_a_deeper_search_is_the_clients_but_for_its_page() -> None:
    """The body stays as it is written, and the other parameters keep their order."""
    body = b'{ "query":{"match":{"n":"1.0e-7"}}, "size" : 5,"min_score":1.0e-7 }'

    assert deeper(body, b"a=%20&size=3&b;from=0") == (b"a=%20&b&from=0&size=50", body)


def test_texts_that_the_client_leaves_out_are_asked_for() -> None:
    """The proxy adds the texts to the client's own `fields`, but only if `_source` may be filtered or missing."""
    assert deeper(b' {"query":{"match":{"a":"b"}},"_source":false}')[1] == (
        b' {"fields": ["title", "body"], "query":{"match":{"a":"b"}},"_source":false}'
    )
    assert json.loads(deeper({"query": MATCH, "_source": [], "fields": ["ti*"]})[1])["fields"] == ["ti*", "body"]
    assert json.loads(deeper({"query": MATCH, "_source": [], "fields": []})[1])["fields"] == ["title", "body"]
    same = {"query": MATCH, "_source": {"excludes": ["v"]}, "fields": [{"field": "*"}]}
    assert json.loads(deeper(same)[1]) == same
    assert json.loads(deeper(b"", b"q=a&_source_includes=x")[1]) == {"fields": ["title", "body"]}
    scripted = {"query": MATCH, "script_fields": {"title": {}}}
    assert json.loads(deeper(scripted)[1])["fields"] == ["body"]
    collapsed = {"query": MATCH, "_source": False, "collapse": {"field": "title"}}
    for grouped in (collapsed, {"retriever": {"standard": collapsed}, "_source": False}):
        assert json.loads(deeper(grouped)[1])["fields"] == ["body"]
    whole = {"query": MATCH, "_source": True, "fields": ["x"]}
    assert json.loads(deeper(whole)[1]) == whole


def test_numbers_are_nobodys_words() -> None:
    """A clause that searches for a number does not make the query ambiguous."""
    year = {"match": {"year": 1984}}
    body = json.dumps({"query": {"bool": {"must": [year, {"match": {"title": "\ud800 words"}}]}}}).encode()

    assert read_search(OPTIONS, b"", body, None).query == "\ufffd words"


@pytest.mark.parametrize(
    ("body", "query_string", "reason"),
    [
        (b"[]", b"", "unreadable_request"),
        (b"{", b"", "unreadable_request"),
        (b'{"a":1,"a":2}', b"", "unreadable_request"),
        (b"\xff", b"", "unreadable_request"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", "unreadable_request"),
        (b'{"size":-1}', b"", "unreadable_request"),
        (b'{"size":' + b"9" * 5000 + b"}", b"", "unreadable_request"),
        (b'{"from":[]}', b"", "unreadable_request"),
        (b'{"query":{"match":{"a":"b"}},"_source":false,"fields":{}}', b"", "unreadable_request"),
        (b'{"query":{"match":{"a":"b"}},"_source":false,"fields":[1]}', b"", "unreadable_request"),
        (b"{}", b"source=%7B%7D", "unreadable_request"),
        (b"{}", b"size=ten", "unreadable_request"),
        (b"{}", b"size=51", "beyond_depth"),
        (b'{"sort":{"date":"asc"}}', b"", "sorted"),
        (b'{"sort":["_score",{"id":"asc"}]}', b"", "sorted"),
        (b"{}", b"sort=date", "sorted"),
        (b"{}", b"q=a;sort=date", "sorted"),
        (b'{"pit":{"id":"x"}}', b"", "paged"),
        (b'{"retriever":{"standard":{"sort":["date"]}}}', b"", "sorted"),
        (b'{"retriever":{"standard":{"search_after":[1]}}}', b"", "paged"),
        (b"{}", b"explain", "explained"),
        (b"{}", b"format=yaml", "partial_answer"),
    ],
)
def test_searches_that_are_left_alone(body: bytes, query_string: bytes, reason: str) -> None:
    with pytest.raises(Skipped, match=reason):
        deeper(body, query_string)


@pytest.mark.parametrize("depth", [100, 300, 450, 480, 600, 2000])
def test_a_query_that_is_nested_deeply(depth: int) -> None:
    """The query is found, or the search passes through as unreadable."""
    body = b'{"query":' + b'{"bool":{"must":' * depth + b'{"match":{"a":"b"}}' + b"}}" * depth + b"}"
    try:
        assert read_search(OPTIONS, b"", body, None).query == "b"
    except Skipped as skipped:
        assert depth > 300
        assert skipped.marks[0].reason == "unreadable_request"  # noqa: PT017 - it may also be read


def test_a_large_search_is_read_where_it_is_ascii() -> None:
    """A single wide character, escaped or not, would make Python store every other one in four bytes."""
    text = "man " * (MAX_WIDE_BYTES // 4)
    assert read_search(OPTIONS, b"", json.dumps({"query": {"match": {"body": text}}}).encode(), None).query == text
    for wide in ("🐝", "\\ud83d\\udc1d"):
        body = '{"query":{"match":{"body":"%s"}}}' % (text + wide)
        with pytest.raises(Skipped, match="large_request"):
            read_search(OPTIONS, b"", body.encode(), None)


@pytest.mark.parametrize("sort", ["_score", ["_score"], [{"_score": "desc"}], {"_score": {"order": "desc"}}])
def test_a_search_sorted_by_score(sort: Any) -> None:
    """Sorting by score is the default, so such a search can be re-ranked."""
    assert deeper({"query": MATCH, "sort": sort}, b"sort=_score")


@given(
    st.binary(max_size=40)
    | st.dictionaries(st.text(max_size=5), st.integers()).map(lambda body: json.dumps(body).encode()),
    st.binary(max_size=20),
)
def test_any_search_is_read_or_left_alone(body: bytes, query_string: bytes) -> None:
    with contextlib.suppress(Skipped):
        read_search(OPTIONS, query_string, body, "words")


def test_a_compressed_body() -> None:
    """A body is unpacked only up to a limit, so that a small one cannot become a large one."""
    packed = gzip.compress(bytes(1000))
    headers = [(b"content-encoding", b"GZIP"), (b"content-type", b"application/json; charset=utf-8")]

    assert unpacked(packed, headers, 1000) == (bytes(1000), 0)
    with pytest.raises(Skipped, match="large_request"):
        unpacked(gzip.compress(bytes(1 << 20)), headers, 1000)
    for bad in (packed[:-1], packed + b"x", b"no gzip"):
        with pytest.raises(Skipped, match="unreadable_request"):
            unpacked(bad, headers, 1 << 20)
    for other in ([(b"content-encoding", b"br")], [(b"content-type", b"application/cbor")]):
        with pytest.raises(Skipped, match="unreadable_request"):
            unpacked(b"{}", other, 1000)
