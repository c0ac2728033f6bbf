"""Bodies that would cost a service without limits gigabytes are refused cheaply, with a message that says why."""

import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import assert_error, running_app
from support.models import as_served, tiny_cross_encoder
from support.scorers import lookup

from bandrank.api import parsing
from bandrank.api.dialects import documents
from bandrank.api.pace import Pace
from bandrank.errors import InvalidInput
from bandrank.settings import Settings

MB = 1_000_000
NEITHER = "candidates.0: Input should be a valid string or an object"
TOO_MANY = "the body has too many JSON values (limit 1310720); send fewer candidates per request"


def million(item: bytes) -> bytes:
    """A million equal values, with commas between them."""
    return item + (b"," + item) * (MB - 1)


@pytest.mark.parametrize(
    ("method", "path", "start", "item", "says"),
    [
        ("POST", "/rerank", b'{"query":"x","candidates":[', b"1", NEITHER),
        (
            "POST",
            "/rerank",
            b'{"query":"x","documents":[',
            b"null",
            "documents.0: Input should be a valid string or an object",
        ),
        ("POST", "/rerank", b'{"query":"x","candidates":[', b"{}", TOO_MANY),
        ("POST", "/rerank", b'{"x":[', b"[]", TOO_MANY),
        ("POST", "/rerank", b'{"x":[', b'{"id":"a,"}', TOO_MANY),
        ("POST", "/rerank", b'{"x":[', b'"","a"', TOO_MANY),
        ("POST", "/rerank", b'{"query":"x","texts":[', b"1", "texts.0: Input should be a valid string"),
        ("POST", "/v1/ranking", b'{"query":{"text":"x"},"passages":[', b"1", "passages.0: Input should be an object"),
        ("POST", "/score", b'{"text_1":"x","text_2":[', b"null", "text_2.0: Input should be a valid string"),
        ("POST", "/inference/cross/a", b'{"input":[', b"null", "input.0: Input should be an object"),
        ("PUT", "/candidates", b'{"candidates":[', b"1", "candidates.0: Input should be an object"),
        ("PUT", "/candidates", b'{"candidates":[', b'""', "candidates.0: Input should be an object"),
        ("DELETE", "/candidates", b'{"ids":[', b"1", "ids.0: Input should be a valid string"),
        ("DELETE", "/candidates", b'{"ids":[', b"null", "ids.0: Input should be a valid string"),
    ],
)
async def test_a_million_faults_cost_little(method: str, path: str, start: bytes, item: bytes, says: str) -> None:
    """Reading stops at the first fault, or before it if the body has too many values."""
    body = start + million(item) + b"]}"
    async with running_app(lookup(), settings=Settings(device="cpu", max_candidates=10 * MB)) as running:
        tracemalloc.start()
        try:
            response = await running.client.request(method, path, content=body)
            _, most_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert assert_error(response, 422, "invalid_input").startswith(says)
    assert most_bytes < len(body) * 8 + 10 * MB  # the body is copied a few times; each fault would take 500 bytes


@pytest.mark.parametrize(
    ("path", "start"),
    [
        ("/rerank", b'{"query":"x","candidates":['),
        ("/rerank", b'{"query":"x","texts":['),
        ("/v2/rerank", b'{"query":"x","documents":['),
        ("/score", b'{"text_1":"x","text_2":['),
        ("/score", b'{"text_2":"x","text_1":['),
        ("/inference/cross/a", b'{"input":['),
    ],
)
@pytest.mark.parametrize("item", [b'""', b"7"], ids=["texts", "none"])
async def test_a_million_candidates_are_counted(path: str, start: bytes, item: bytes) -> None:
    """The message has the number of candidates, although none of them is validated."""
    async with running_app(lookup()) as running:
        response = await running.client.post(path, content=start + million(item) + b"]}")

    message = assert_error(response, 413, "input_too_large")
    assert message == "too many candidates: 1000000 (limit 2048); send fewer, or raise the setting max_candidates"


@pytest.mark.parametrize("part_bytes", [1, MB])
@pytest.mark.parametrize("many_quotes", [0, MB])
@given(texts=st.lists(st.text('ab,":\\\\{[]}é', max_size=8), max_size=6))
def test_values_and_fields_are_counted_outside_of_texts(many_quotes: int, part_bytes: int, texts: list[str]) -> None:
    """Both ways of skipping texts lead to the same count, in parts and at once, whatever the texts contain."""
    body = json.dumps([{text: [text]} for text in texts]).encode()
    values = max(0, len(texts) - 1) + len(texts) + parsing.LIST_VALUES * (1 + 2 * len(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "MANY_QUOTES", many_quotes)
        patch.setattr(parsing, "PART_BYTES", part_bytes)
        patch.setattr(parsing, "MAX_VALUES", values)
        assert parsing.num_values(body, len(texts)) == values
        with pytest.raises(InvalidInput):
            parsing.num_values(body, len(texts) - 1)
        patch.setattr(parsing, "MAX_VALUES", values - 1)
        with pytest.raises(InvalidInput):
            parsing.num_values(body)


@pytest.mark.parametrize("text", [b"{[,:", rb"\",\\", rb"\\\"{"])
async def test_commas_and_brackets_in_texts_are_no_values(text: bytes) -> None:
    body = b'{"query":"who","candidates":["' + text * MB + b'", "man"]}'
    async with running_app(lookup()) as running:
        response = await running.client.post("/rerank", content=body)

    assert response.status_code == 200, response.text[:200]


@pytest.mark.parametrize(
    ("method", "path", "start"),
    [
        ("POST", "/explain", b'{"query":"x","candidate":"a"'),
        ("POST", "/v1/embeddings", b'{"input":["a"]'),
        ("DELETE", "/candidates", b'{"ids":["a"]'),
    ],
)
async def test_half_a_million_fields_are_refused_before_they_are_read(method: str, path: str, start: bytes) -> None:
    body = start + b"".join(b',"f%d":1' % n for n in range(MB // 2)) + b"}"
    async with running_app(lookup()) as running:
        response = await running.client.request(method, path, content=body)

    says = "the body has too many fields (limit 65536); send fewer of each candidate's"
    assert says in response.text
    assert response.status_code == 422


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{" + b",".join(b'"f%d":1' % n for n in range(MB)) + b"}", 422),
        (b'{"query":"x","candidates":[{"text":"a"' + b"".join(b',"f%d":1' % n for n in range(200_000)) + b"}]}", 422),
        (b'{"query":"x","candidates":["a"]' + b',"top_n":1' * MB + b"}", 422),
        (b'{"query":"x","candidates":' + b"[" * MB + b"]" * MB + b"}", 422),
    ],
    ids=["fields", "fields of a document", "the same field", "nesting"],
)
async def test_odd_bodies_are_refused_in_few_words(body: bytes, status: int) -> None:
    async with running_app(lookup()) as running:
        response = await running.client.post("/rerank", content=body)

    assert response.status_code == status
    assert len(response.content) < 2000


async def test_a_query_longer_than_a_cross_encoder_of_passages_takes_is_cut() -> None:
    """The estimate of the request's work must assume the cut query, which leaves room for a passage."""
    scorer = as_served(tiny_cross_encoder(positions=64))
    async with running_app(scorer) as running:
        response = await running.rerank({"query": "man " * 100_000, "candidates": ["she " * 100]})

    assert response.status_code == 200, response.text
    assert response.json()["meta"]["truncated_query_tokens"] > 0


async def test_a_body_without_an_end_is_not_read_to_it() -> None:
    """A few times the limit is read, for clients that send their whole body before they read the answer."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1000
            yield b" " * 1000

    async with running_app(lookup(), settings=Settings(device="cpu", max_body_bytes=10_000)) as running:
        headers = {"content-type": "application/json"}
        assert_error(await running.client.post("/rerank", content=endless(), headers=headers), 413, "input_too_large")

    assert sent <= parsing.DRAIN_FACTOR * 10_000 + 2000


@pytest.mark.parametrize("path", ["/v1/rerank", "/pinecone/rerank", "/reranking"])
async def test_fields_of_many_documents_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Others get a turn after every 128 documents, each of which may have 64 fields that lie deep."""
    pieces = [0]
    read = documents._text_of

    def counted(*args: Any, **kwargs: Any) -> str:
        pieces[-1] += 1
        return read(*args, **kwargs)

    async def turn(*_: object, **__: object) -> None:
        pieces.append(0)

    monkeypatch.setattr(documents, "_text_of", counted)
    monkeypatch.setattr(Pace, "turn", turn)
    body = {"query": "who", "rank_fields": ["a"]} | dict.fromkeys(("documents", "input"), [{"a": "man"}] * 2000)
    async with running_app(lookup()) as running:
        response = await running.client.post(path, json=body)

    assert response.status_code == 200, response.text[:200]
    assert sum(pieces) == 2000
    assert max(pieces) <= 128
