"""Bad input gets the right status and a flat error, and other requests still get the right scores."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from support.app import RunningApp, assert_error, running_app
from support.scorers import lookup

from bandrank.settings import Settings

SETTINGS = Settings(device="cpu", max_body_bytes=8 * 1024 * 1024)
GOOD = {"query": "who", "candidates": ["she", "man"], "raw_scores": True}


@dataclass(frozen=True)
class Case:
    """A body and its expected answer; `says` is part of the message."""

    name: str
    body: bytes
    status: int
    error_type: str
    says: str = ""


def invalid(name: str, body: Any, says: str = "") -> Case:
    """A body that is refused with 422."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Case(name, content, 422, "invalid_input", says)


CANDIDATES = ["man"]
CASES = [
    invalid("not JSON", b"query=who", "JSON"),
    invalid("empty body", b"", "JSON"),
    invalid("half a body", b'{"query": "who", "candidates": ["ma', "JSON"),
    invalid("two bodies", b'{"query": "who", "candidates": ["man"]}{}', "JSON"),
    invalid("a list", [GOOD]),
    invalid("a string", "who"),
    invalid("null", None),
    invalid("invalid UTF-8", b'{"query": "\xff\xfe", "candidates": ["man"]}'),
    invalid("UTF-16", json.dumps(GOOD).encode("utf-16")),
    invalid("a raw NUL byte", b'{"query": "w\x00o", "candidates": ["man"]}'),
    invalid("a lone surrogate in the query", b'{"query": "\\ud800", "candidates": ["man"]}', "JSON"),
    invalid("a lone surrogate in a candidate", b'{"query": "who", "candidates": ["\\udc00"]}', "JSON"),
    invalid("a lone surrogate in an id", b'{"query": "who", "candidates": [{"id": "\\ud83d", "text": ""}]}', "JSON"),
    invalid("deep nesting", b'{"query": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    invalid("deep nesting in an unknown field", b'{"a": ' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001),
    invalid("no query", {"candidates": CANDIDATES}, "query"),
    invalid("no query but null", {"query": None, "candidates": CANDIDATES}, "query"),
    invalid("a number for a query", {"query": 7, "candidates": CANDIDATES}, "query"),
    invalid("an empty query", {"query": "", "candidates": CANDIDATES}, "query must not be empty"),
    invalid("a blank query", {"query": " \n\t\u2003", "candidates": CANDIDATES}, "query must not be empty"),
    invalid("no candidates", {"query": "who"}, "candidates"),
    invalid("empty candidates", {"query": "who", "candidates": []}, "candidates must not be empty"),
    invalid("empty documents", {"query": "who", "documents": []}, "documents: Input should not be empty"),
    invalid("null candidates", {"query": "who", "candidates": None}, "candidates"),
    invalid("both names", {"query": "who", "candidates": CANDIDATES, "documents": CANDIDATES}, "not in both"),
    invalid("a string for candidates", {"query": "who", "candidates": "man"}, "candidates"),
    invalid("a number among candidates", {"query": "who", "candidates": ["man", 7]}, "candidates.1"),
    invalid("null among candidates", {"query": "who", "candidates": ["man", None]}, "candidates.1"),
    invalid("a candidate of nothing", {"query": "who", "candidates": [{}]}, "has neither a text nor an id"),
    invalid("a number for an id", {"query": "who", "candidates": [{"id": 7, "text": "a"}]}, "id"),
    invalid("a list for a text", {"query": "who", "candidates": [{"id": "a", "text": ["b"]}]}, "text"),
    invalid("a negative top_n", GOOD | {"top_n": -1}, "top_n"),
    invalid("a fraction for top_n", GOOD | {"top_n": 1.5}, "top_n"),
    invalid("a word for top_n", GOOD | {"top_n": "all"}, "top_n"),
    invalid("infinity for top_n", b'{"query": "who", "candidates": ["man"], "top_n": 1e999}', "top_n"),
    invalid("5000 digits for top_n", b'{"query": "who", "candidates": ["man"], "top_n": ' + b"9" * 5000 + b"}", "JSON"),
    invalid("NaN for top_n", b'{"query": "who", "candidates": ["man"], "top_n": NaN}'),
    invalid("a list for return_documents", GOOD | {"return_documents": []}, "return_documents"),
    invalid("a word for raw_scores", GOOD | {"raw_scores": "maybe"}, "raw_scores"),
    invalid("a word that means yes for raw_scores", GOOD | {"raw_scores": "yes"}, "raw_scores"),
    invalid("a number for return_documents", GOOD | {"return_documents": 1}, "return_documents"),
    invalid("digits for top_n", GOOD | {"top_n": "1"}, "top_n"),
    invalid("true for top_n", GOOD | {"top_n": True}, "top_n"),
    invalid("digits for budget_ms", GOOD | {"budget_ms": "50"}, "budget_ms"),
    invalid("nothing for budget_ms", GOOD | {"budget_ms": 0}, "budget_ms"),
    invalid("less than nothing for budget_ms", GOOD | {"budget_ms": -0.0}, "budget_ms"),
    invalid("too little for a float for budget_ms", b'{"query": "who", "candidates": ["man"], "budget_ms": 1e-999}'),
    invalid("an object for candidates", {"query": "who", "candidates": {"0": "man"}}, "candidates"),
    invalid("a comment", b'{"query": "who", /* this */ "candidates": ["man"]}', "JSON"),
    invalid("an unknown escape", rb'{"query": "\x41", "candidates": ["man"]}', "JSON"),
    invalid("a line end in a text", b'{"query": "a\nb", "candidates": ["man"]}', "JSON"),
    invalid("a number for model", GOOD | {"model": 7}, "model"),
    Case(
        "a candidate without a text",
        b'{"query": "who", "candidates": [{"id": "a"}]}',
        404,
        "unknown_candidates",
        "send texts",
    ),
    Case(
        "an unknown strategy",
        json.dumps(GOOD | {"strategy": "cascade"}).encode(),
        404,
        "unknown_strategy",
        "the model has no strategy 'cascade'; there are auto, accurate",
    ),
    Case("an unknown model", json.dumps(GOOD | {"model": "gpt"}).encode(), 404, "unknown_model", "'gpt'"),
    Case(
        "100,000 candidates",
        json.dumps({"query": "who", "candidates": ["man"] * 100_000}).encode(),
        413,
        "input_too_large",
        "too many candidates: 100000 (limit 2048)",
    ),
    Case(
        "one candidate too many",
        json.dumps({"query": "who", "candidates": ["man"] * 2049}).encode(),
        413,
        "input_too_large",
        "2048",
    ),
    Case("a large body", b'{"query": "' + b"x" * 50_000_000, 413, "input_too_large", "8388608 bytes"),
]


def by_name(case: Case) -> str:
    return case.name


async def send(running: RunningApp, case: Case) -> httpx.Response:
    """POST /rerank with the case's bytes."""
    return await running.client.post("/rerank", content=case.body, headers={"Content-Type": "application/json"})


async def assert_serves(running: RunningApp) -> None:
    """Asserts that a good request gets its scores."""
    response = await running.rerank(GOOD)
    assert response.status_code == 200, response.text
    results = [(result["index"], result["relevance_score"]) for result in response.json()["results"]]
    assert results == [(1, 1.5), (0, -2.0)]


@pytest.mark.parametrize("case", CASES, ids=by_name)
async def test_bad_input_is_refused(case: Case) -> None:
    async with running_app(lookup(man=1.5, she=-2.0), settings=SETTINGS) as running:
        message = assert_error(await send(running, case), case.status, case.error_type)

        assert case.says in message
        assert len(message) < 1000
        await assert_serves(running)


async def test_bad_input_does_not_affect_other_requests() -> None:
    """With all cases sent at once between good requests, each good one gets its usual answer, and no bad one reaches
    the model.
    """
    async with running_app(lookup(man=1.5, she=-2.0), settings=SETTINGS) as running:
        small = [case for case in CASES if len(case.body) < 1_000_000]
        bad = [asyncio.create_task(send(running, case)) for case in small]
        await asyncio.gather(*(assert_serves(running) for _ in range(20)))
        answers = await asyncio.gather(*bad)
        seen = await running.scrape()

    assert [answer.status_code for answer in answers] == [case.status for case in small]
    assert seen.value("bandrank_candidates_total") == 20 * 2
    assert seen.value("bandrank_requests_total", status="422") == sum(case.status == 422 for case in small)
    assert seen.value("bandrank_requests_total", status="404") == 3


@pytest.mark.parametrize(
    "texts",
    [
        ["\x00", "\x00\x00man", "a\x00b", "\x01\x07\x1b\x7f\x85"],
        ["☃", "漢字 ☃", "\U0001f41d" * 50],
        ["", " ", "\n"],
        ["\u202e\ufeff\u200b", "\u2066\u200f\u202c", "\ufffe\uffff", "e\u0301" * 100],
        ["x" * 100_000, "man " * 100_000],
        ["[CLS] [SEP] [PAD] [MASK] [UNK]"],
    ],
    ids=["NUL bytes", "unknown characters", "nothing", "marks", "long", "special tokens"],
)
async def test_odd_texts_are_ranked(texts: list[str]) -> None:
    """Any string is a text, both as candidate and as query."""
    async with running_app(lookup(man=1.5, she=-2.0), settings=SETTINGS) as running:
        for text in texts:
            for query in filter(str.strip, (text, "who")):
                response = await running.rerank({"query": query, "candidates": [*texts, "man"]})
                assert response.status_code == 200, response.text
                assert len(response.json()["results"]) == len(texts) + 1
        await assert_serves(running)


async def test_the_largest_request_is_answered() -> None:
    """The largest allowed body with the most allowed candidates is answered; one more byte is too large."""
    settings = Settings(device="cpu", max_body_bytes=500_000)
    async with running_app(lookup(), settings=settings) as running:
        most = await running.rerank({"query": "who", "candidates": ["man"] * 2048})
        frame = len(b'{"query":"who","candidates":[""]}')
        body = b'{"query":"who","candidates":["' + b"x" * (settings.max_body_bytes - frame) + b'"]}'
        largest = await running.client.post("/rerank", content=body)
        too_large = await running.client.post("/rerank", content=body + b" ")

    assert (most.status_code, len(most.json()["results"])) == (200, 2048)
    assert largest.status_code == 200
    assert_error(too_large, 413, "input_too_large")


HALF = "half of a surrogate pair cannot be read, such as a text has that was cut within an emoji"
NEITHER = "candidates.{0}: Input should be a valid string or an object"


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        (b'"man", ' * 1000 + b"7", NEITHER.format(1000)),
        (b"NaN", NEITHER.format(0)),
        (b"9" * 40, NEITHER.format(0)),
        (b'["id", "text"]', NEITHER.format(0)),
        (b'"man", {"score": 1}', "candidates.1 has neither a text nor an id"),
        (b'{"id": null, "text": null}', "candidates.0 has neither a text nor an id"),
        (b'{"id": "a", "text": "b"}, {"text": 1}, 5', "candidates.1.text: Input should be a valid string"),
        (b'"man", {"id": 7, "text": "b"}', "candidates.1.id: Input should be a valid string"),
        (b'{"text": "b", "score": "1"}', "candidates.0.score: Input should be a valid number"),
        (b'"\xff"', "Invalid JSON: invalid unicode code point at line 1 column 33; the body is not in UTF-8"),
        (rb'"\ud83d"', f"Invalid JSON: unexpected end of hex escape at line 1 column 39; {HALF}"),
        (rb'"\udc00 man"', f"Invalid JSON: lone leading surrogate in hex escape at line 1 column 38; {HALF}"),
        (b'"man",', "Invalid JSON: trailing comma at line 1 column 38"),
    ],
)
async def test_a_fault_is_reported_with_its_location(candidates: bytes, message: str) -> None:
    """The message is checked word for word: clients show it, and some parse the location."""
    async with running_app(lookup()) as running:
        body = b'{"query": "who", "candidates":[' + candidates + b"]}"
        response = await running.client.post("/rerank", content=body)

    assert assert_error(response, 422, "invalid_input") == message


async def test_several_faults_are_named_together() -> None:
    """The message lists the first three faults and the number of further ones."""
    async with running_app(lookup()) as running:
        body = {
            "query": 1,
            "candidates": ["man"],
            "top_n": -1,
            "return_documents": "maybe",
            "raw_scores": "maybe",
            "model": 2,
        }
        message = assert_error(await running.rerank(body), 422, "invalid_input")

    assert message.startswith("query: ")
    assert message.endswith(" (and 2 more)")
    assert message.count("; ") == 2


async def test_files_of_windows_are_read() -> None:
    """Programs on Windows may put a byte order mark before their JSON."""
    async with running_app(lookup()) as running:
        response = await running.client.post("/rerank", content=json.dumps(GOOD).encode("utf-8-sig"))

    assert response.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/rerank", 405),
        ("PUT", "/rerank", 405),
        ("POST", "/metrics", 405),
        ("GET", "/nothing", 404),
        ("POST", "/", 405),
        ("TRACE", "/rerank", 405),
        ("OPTIONS", "/candidates", 405),
        ("QUERY", "/v1/models", 405),
    ],
)
async def test_paths_and_methods_that_do_not_exist(method: str, path: str, status: int) -> None:
    """The error has the flat body, and a 405 names the methods that exist."""
    async with running_app(lookup()) as running:
        response = await running.client.request(method, path)

    assert_error(response, status, "http")
    assert ("allow" in response.headers) == (status == 405)


async def test_allow_names_every_method_of_a_path() -> None:
    """The methods of a path may belong to several routes."""
    async with running_app(lookup()) as running:
        answers = [await running.client.patch(path) for path in ("/candidates", "/rerank", "/healthz")]

    assert [answer.headers["allow"] for answer in answers] == ["DELETE, PUT", "POST", "GET, HEAD"]
    assert assert_error(answers[0], 405, "http") == "'/candidates' takes DELETE, PUT, not PATCH"


async def test_an_unknown_path_is_told() -> None:
    """A client often joins the path of its base URL and its own, so that its user has never seen the result."""
    async with running_app(lookup()) as running:
        answers = [await running.client.post(path, json=GOOD) for path in ("/v1/v2/rerank", f"/{'v' * 99}")]

    messages = [assert_error(answer, 404, "http") for answer in answers]
    assert messages[0].startswith("there is nothing at '/v1/v2/rerank'; ")
    assert f"'/{'v' * 79}'" in messages[1]


async def test_no_redirect_follows_a_host() -> None:
    """A trailing slash makes the path of a GET unknown; a redirect would lead to whatever host the request names."""
    async with running_app(lookup()) as running:
        response = await running.client.get("/healthz/", headers={"host": "elsewhere"})

    assert_error(response, 404, "http")
    assert "location" not in response.headers


async def test_a_message_does_not_repeat_what_was_sent() -> None:
    """The name of an unknown model is cut, however long it is."""
    async with running_app(lookup()) as running:
        response = await running.rerank(GOOD | {"model": "m" * 1_000_000})

    assert_error(response, 404, "unknown_model")
    assert len(response.content) < 10_000
