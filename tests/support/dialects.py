"""How clients of other services speak to each path: what they send, and what they read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from support.app import assert_error, running_app
from support.scorers import lookup

WORDS = ["man", "she", "he", "you"]
RAW = {"man": 1.5, "she": -2.0, "he": 4.0}  # "you" scores 0
BEST_FIRST = [2, 0, 3, 1]
SIGMOIDS = [0.8175744761936437, 0.11920292202211755, 0.9820137900379085, 0.5]  # 1 / (1 + exp(-x)), by hand

Scores = list[tuple[int, Any]]  # (index in the request, score), in the order of the answer


@dataclass(frozen=True, repr=False)
class Speaker:
    """A client that speaks to a path.

    body: makes its request's body from a query and texts.  scores: reads the scores in an answer.  raw: whether these
    are raw scores.  as_sent: whether they are in the order of the request.  texts: the body's field of texts.
    """

    name: str
    path: str
    body: Callable[[str, Sequence[str]], dict[str, Any]]
    scores: Callable[[Any], Scores]
    raw: bool = False
    as_sent: bool = False
    texts: str = "documents"

    def __repr__(self) -> str:
        return f"{self.name} {self.path}"

    def with_texts(self, body: dict[str, Any], texts: Any) -> dict[str, Any]:
        """A body of the client, with something else for its texts."""
        inner = {} if self.texts in body else {"input": self.with_texts(body["input"], texts)}
        return body | (inner or {self.texts: texts})


def reads(results: str | None = "results", score: str = "relevance_score") -> Callable[[Any], Scores]:
    """A reader of items with `index` and a score. results: the field with the items; None for a bare list."""

    def read(answer: Any) -> Scores:
        return [(item["index"], item[score]) for item in (answer if results is None else answer[results])]

    return read


def sends(texts: str, **more: Any) -> Callable[[str, Sequence[str]], dict[str, Any]]:
    """A maker of bodies with a query and texts. texts: the field of the texts.  more: further fields."""
    return lambda query, items: {"query": query, texts: list(items), **more}


def in_objects(query: str, items: Sequence[str]) -> dict[str, Any]:
    """The body that clients of NIM send."""
    return {"query": {"text": query}, "passages": [{"text": text} for text in items]}


def in_parts(*texts: str) -> dict[str, Any]:
    """The object that clients of vLLM may send in place of a text."""
    return {"content": [{"type": "text", "text": text} for text in texts]}


IMAGE = {"content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}


def pairs(query: str, items: Sequence[str]) -> dict[str, Any]:
    """The body that Metarank sends."""
    return {"input": [{"query": query, "text": text} for text in items]}


def in_input(query: str, items: Sequence[str]) -> dict[str, Any]:
    """The body that DashScope's SDKs send without parameters."""
    return {"model": "gte-rerank-v2", "input": {"query": query, "documents": list(items)}}


DASHSCOPE = "/api/v1/services/rerank/text-rerank/text-rerank"
DOCUMENTS = sends("documents")
COHERE, TEI, NIM, SCORES = reads(), reads(None, "score"), reads("rankings", "logit"), reads("data", "score")

SPEAKERS = [
    *(
        Speaker("cohere", path, DOCUMENTS, COHERE)
        for path in ("/v1/rerank", "/v2/rerank", "/v1/reranks", "/compatible-api/v1/reranks", "/rerank")
    ),
    Speaker("together", "/together/v1/rerank", DOCUMENTS, COHERE),
    Speaker("dashscope", DASHSCOPE, in_input, lambda answer: COHERE(answer["output"])),
    Speaker("pinecone", "/pinecone/rerank", DOCUMENTS, SCORES),
    *(Speaker("llama.cpp", path, DOCUMENTS, COHERE) for path in ("/reranking", "/v1/reranking")),
    *(
        Speaker("tei", path, sends("texts"), TEI, texts="texts")
        for path in ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking")
    ),
    *(
        Speaker("voyage", path, sends("documents", truncation=True), reads("data"))
        for path in ("/v1/rerank", "/rerank")
    ),
    Speaker("litellm's voyage", "/voyage/v1/rerank", DOCUMENTS, reads("data")),
    *(
        Speaker("mixedbread", path, sends("input", top_k=None), SCORES, texts="input")
        for path in ("/v1/reranking", "/reranking")
    ),
    *(Speaker("zeroentropy", path, DOCUMENTS, COHERE) for path in ("/models/rerank", "/v1/models/rerank")),
    Speaker("infinity", "/infinity/rerank", DOCUMENTS, COHERE),
    Speaker("sglang", "/sglang/v1/rerank", DOCUMENTS, TEI),
    *(
        Speaker(
            "pairs",
            path,
            lambda query, items: {"text_1": query, "text_2": list(items)},
            SCORES,
            as_sent=True,
            texts="text_2",
        )
        for path in ("/score", "/v1/score")
    ),
    *(
        Speaker("nim", path, in_objects, NIM, raw=True, texts="passages")
        for path in ("/v1/ranking", "/ranking", "/v1/retrieval/nvidia/reranking", "/v1/rerank", "/rerank")
    ),
    Speaker(
        "weaviate",
        "/rerank",
        sends("documents", property=""),
        lambda answer: [(index, each["score"]) for index, each in enumerate(answer["scores"])],
        as_sent=True,
    ),
    Speaker(
        "metarank",
        "/inference/cross/ms-marco",
        pairs,
        lambda answer: list(enumerate(answer["scores"])),
        raw=True,
        as_sent=True,
        texts="input",
    ),
]
ONE_OF_EACH = list({speaker.name: speaker for speaker in SPEAKERS}.values())


def assert_invalid(response: httpx.Response) -> str:
    """Checks a 422, whose body is a special one for clients of infinity; returns its message."""
    if response.request.url.path != "/infinity/rerank":
        return assert_error(response, 422, "invalid_input")
    body = response.json()
    message: str = body["message"]
    assert response.status_code == 422
    assert body == {
        "message": message,
        "detail": [{"loc": ["body"], "msg": message, "type": "invalid_input"}],
        "error": message,
        "error_type": "invalid_input",
    }
    return message


async def ask(path: str, body: Any, **headers: str) -> httpx.Response:
    """The answer of an application whose scorer knows the words of `RAW`; its status must be 200."""
    async with running_app(lookup(**RAW)) as running:
        response = await running.client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response
