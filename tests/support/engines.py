"""Search engines that call a re-ranker: the bytes that they send, and the rules by which they read an answer.

Written after the sources of Elasticsearch 9 (its inference services), OpenSearch 3 (its connectors) and Weaviate 1.3x
(its modules). Each of them writes JSON in its own way: Go escapes characters that have a meaning in HTML, Jackson
escapes only what it must, and two libraries that disagree fill a template of OpenSearch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

QUERY = 'who is "it" & <why>/when? 🐝'
DOCUMENTS = ["she", "man & bee 🐝", "the café\n"]
Scores = list[float]


@dataclass(frozen=True)
class Engine:
    """A search engine as a client of a re-ranker.

    head: its request line and headers, without Host and Content-Length.  body: what it sends for QUERY and DOCUMENTS.
    read: reads the scores of the documents by the rules of its parser; raises AssertionError where the parser would
    refuse an answer.  error: the field of an error's body that it shows.  raw: whether it asks for raw scores.
    """

    name: str
    head: str
    body: str
    read: Callable[[Any], Scores]
    error: str
    raw: bool = False

    def __str__(self) -> str:
        return self.name

    def request(self, query: str = QUERY) -> bytes:
        """The bytes that it sends for a query, which must need no escapes unless it is QUERY."""
        body = self.body if query == QUERY else self.body.replace(self._escaped_query, query)
        content = body.encode()
        line, _, headers = self.head.partition("\n")
        lines = [line, "Host: reranker:8000", f"Content-Length: {len(content)}", *headers.split("\n"), "", ""]
        return "\r\n".join(lines).encode() + content

    @property
    def _escaped_query(self) -> str:
        start = self.body.index("who is")
        return self.body[start : self.body.index('"', self.body.index("when?"))]


def placed(items: Any, score: str, *, fields: set[str] | None = None) -> Scores:
    """The scores in the order of the documents; there must be one item for each document.

    fields: the only fields that a strict parser lets an item have. A score must have a decimal point: Java's parsers of
    untyped JSON make a Double of such a number alone, and an Integer is not cast to one.
    """
    assert isinstance(items, list)
    assert len(items) == len(DOCUMENTS)
    scores = [float("nan")] * len(items)
    for item in items:
        assert fields is None or item.keys() <= fields
        assert type(item["index"]) is int
        assert type(item[score]) is float
        scores[item["index"]] = item[score]
    assert sorted(item["index"] for item in items) == [*range(len(items))]
    return scores


def texts_in_objects(items: Any) -> None:
    """Checks that the `document` of each item that has one is an object with the right text."""
    for item in items:
        assert item.get("document", {"text": ""}).keys() >= {"text"}
        assert "document" not in item or item["document"]["text"] == DOCUMENTS[item["index"]]


def elastic_hugging_face(answer: Any) -> Scores:
    """Reads a bare list; the first versions of the service refuse unknown fields."""
    assert all("text" not in item or isinstance(item["text"], str) for item in answer)
    return placed(answer, "score", fields={"index", "score", "relevance_score", "text", "document"})


def elastic_cohere(answer: Any) -> Scores:
    """Reads strictly: an unknown field of a result is an error, and so is a text or a null in place of an object."""
    texts_in_objects(answer["results"])
    return placed(answer["results"], "relevance_score", fields={"index", "relevance_score", "document"})


def elastic_custom(answer: Any) -> Scores:
    """Follows three paths into an object, which must find equally many values of the right types."""
    assert isinstance(answer, dict)
    texts = [result["document"]["text"] for result in answer["results"]]
    assert texts == [DOCUMENTS[result["index"]] for result in answer["results"]]
    return placed(answer["results"], "relevance_score")


def elastic_jinaai(answer: Any) -> Scores:
    """Reads leniently: the engine would also accept a text as a document."""
    texts_in_objects(answer["results"])
    return placed(answer["results"], "relevance_score")


def opensearch_cohere(answer: Any) -> Scores:
    """Reads $.results: an index is a place in an array of as many scores, which are cast to Double."""
    return placed(answer["results"], "relevance_score")


def weaviate_transformers(answer: Any) -> Scores:
    """Reads scores by position; Go refuses values whose types differ from the declared ones."""
    assert all(isinstance(answer.get(name, ""), str) for name in ("query", "property", "error"))
    assert isinstance(answer.get("score", 0.0), float)
    assert [each["document"] for each in answer["scores"]] == DOCUMENTS
    assert all(type(each["score"]) is float for each in answer["scores"])
    return [each["score"] for each in answer["scores"]]


def weaviate_cohere(answer: Any) -> Scores:
    """Reads scores by index, one for each document; a document must be an object."""
    assert isinstance(answer.get("id", ""), str)
    assert isinstance(answer["meta"]["api_version"]["version"], str)
    texts_in_objects(answer["results"])
    return placed(answer["results"], "relevance_score")


def weaviate_nvidia(answer: Any) -> Scores:
    return placed(answer["rankings"], "logit")


JACKSON_QUERY, JACKSON_DOCUMENTS = r'"who is \"it\" & <why>/when? 🐝"', r'["she","man & bee 🐝","the café\n"]'
GO_QUERY = r'"who is \"it\" \u0026 \u003cwhy\u003e/when? 🐝"'
GO_DOCUMENTS = r'["she","man \u0026 bee 🐝","the café\n"]'
GO_PASSAGES = r'[{"text":"she"},{"text":"man \u0026 bee 🐝"},{"text":"the café\n"}]'
OPENSEARCH_QUERY = r'"who is \"it\" & <why>\/when? \uD83D\uDC1D"'
OPENSEARCH_DOCUMENTS = GO_DOCUMENTS
JAVA = "Connection: Keep-Alive\nUser-Agent: Apache-HttpAsyncClient/4.1.5 (Java/24.0.1)"
JAVA_5 = "Connection: keep-alive\nUser-Agent: Apache-HttpAsyncClient/5.5 (Java/25)"
GO, GO_END = "User-Agent: Go-http-client/1.1", "Accept-Encoding: gzip"
KEY = "Authorization: Bearer any"

ENGINES = [
    Engine(
        "elasticsearch hugging_face",
        f"POST /rerank HTTP/1.1\nContent-Type: application/json\n{KEY}\n{JAVA}",
        f'{{"texts":{JACKSON_DOCUMENTS},"query":{JACKSON_QUERY},"return_text":false,"top_n":2}}',
        elastic_hugging_face,
        error="error",
    ),
    Engine(
        "elasticsearch cohere",
        f"POST /v2/rerank HTTP/1.1\nContent-Type: application/json;charset=utf-8\n{KEY}\n"
        f"Request-Source: unspecified:elasticsearch\n{JAVA}",
        f'{{"model":"rerank-v3.5","query":{JACKSON_QUERY},"documents":{JACKSON_DOCUMENTS},"return_documents":true,'
        '"top_n":3}',
        elastic_cohere,
        error="message",
    ),
    Engine(
        "elasticsearch custom",
        f"POST /v2/rerank HTTP/1.1\nContent-Type: application/json\n{KEY}\n{JAVA}",
        f'{{"model": "rerank-v3.5", "query": {JACKSON_QUERY}, "documents": {JACKSON_DOCUMENTS}, "top_n": 3, '
        '"return_documents": true}',
        elastic_custom,
        error="message",
    ),
    Engine(
        "elasticsearch jinaai",
        f"POST /v1/rerank HTTP/1.1\nContent-Type: application/json; charset=UTF-8\n{KEY}\n{JAVA_5}",
        f'{{"model":"jina-reranker-v2-base-multilingual","query":{JACKSON_QUERY},"documents":{JACKSON_DOCUMENTS},'
        '"top_n":3,"return_documents":true}',
        elastic_jinaai,
        error="detail",
    ),
    Engine(
        "opensearch cohere connector",
        f"POST /v1/rerank HTTP/1.1\n{KEY}\nRequest-Source: unspecified:opensearch\nContent-Type: application/json",
        f'{{ "documents": {OPENSEARCH_DOCUMENTS}, "query": {OPENSEARCH_QUERY}, "model": "rerank-english-v2.0", '
        '"top_n": 3 }',
        opensearch_cohere,
        error="message",
    ),
    Engine(
        "weaviate reranker-transformers",
        f"POST /rerank HTTP/1.1\n{GO}\n{GO_END}",
        f'{{"query":{GO_QUERY},"documents":{GO_DOCUMENTS},"property":""}}',
        weaviate_transformers,
        error="error",
    ),
    Engine(
        "weaviate reranker-cohere",
        f"POST /v2/rerank HTTP/1.1\n{GO}\n{KEY}\nContent-Type: application/json\n"
        f"Request-Source: unspecified:weaviate\n{GO_END}",
        f'{{"documents":{GO_DOCUMENTS},"query":{GO_QUERY},"model":"rerank-v3.5","return_documents":false}}',
        weaviate_cohere,
        error="message",
    ),
    Engine(
        "weaviate reranker-nvidia",
        f"POST /v1/retrieval/nvidia/reranking HTTP/1.1\n{GO}\nAccept: application/json\n{KEY}\n"
        f"Content-Type: application/json\n{GO_END}",
        f'{{"model":"nvidia/rerank-qa-mistral-4b","query":{{"text":{GO_QUERY}}},"passages":{GO_PASSAGES}}}',
        weaviate_nvidia,
        error="detail",
        raw=True,
    ),
]
