"""Where several dialects share a path, the fields of a body tell its dialect."""

from typing import Any

import pytest
from support.app import assert_error, running_app
from support.dialects import WORDS, ask
from support.scorers import lookup

DOCUMENTS = {"query": "who", "documents": WORDS}
OF_EACH: dict[str, tuple[dict[str, Any], set[str] | None]] = {  # a body, and the keys of its answer; None: a list
    "native": ({"query": "who", "candidates": WORDS}, {"id", "model", "results", "usage", "meta"}),
    "native, with nulls": (
        {"query": "who", "candidates": WORDS, "documents": None, "texts": None, "top_k": None},
        {"id", "model", "results", "usage", "meta"},
    ),
    "tei": ({"query": "who", "texts": WORDS}, None),
    "tei, with documents": (DOCUMENTS | {"texts": WORDS}, None),
    "weaviate": (DOCUMENTS | {"property": ""}, {"query", "scores", "property"}),
    "nim": ({"query": {"text": "who"}, "passages": [{"text": "man"}]}, {"rankings", "usage"}),
    "voyage": (DOCUMENTS | {"top_k": 1}, {"object", "data", "model", "usage"}),
    "cohere": (DOCUMENTS, {"id", "model", "results", "usage", "meta"}),
    "cohere, with nulls": (
        DOCUMENTS | {"candidates": None, "top_k": None, "truncation": None, "property": None, "texts": None},
        {"id", "model", "results", "usage", "meta"},
    ),
}


@pytest.mark.parametrize("name", OF_EACH)
async def test_a_field_tells_the_dialect(name: str) -> None:
    """A field of the body tells its dialect, and a field that is null counts as absent."""
    body, keys = OF_EACH[name]
    answer = (await ask("/rerank", body)).json()

    assert (None if isinstance(answer, list) else answer.keys()) == keys
    if "meta" in (keys or ()):
        assert ("stage" in answer["results"][0]) == name.startswith("native")


@pytest.mark.parametrize("path", ["/rerank/", "//rerank", "/v1//rerank", "//v1/rerank//"])
async def test_slashes_too_many_make_no_difference(path: str) -> None:
    """Base URLs may end with a slash, and some clients add a path that begins with another one."""
    answer = (await ask(f"http://bandrank{path}", DOCUMENTS)).json()

    assert answer["results"][0]["index"] == 2


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/rerank", {"query": "who"}, "candidates: Field required"),
        ("/rerank", {"query": "who", "candidates": None}, "candidates: Input should be a valid array"),
        ("/v1/rerank", {"query": "who"}, "documents: Field required"),
        ("/v1/reranking", {"query": "who"}, "documents: Field required"),
        ("/rerank", {"query": "who", "candidates": WORDS, "documents": WORDS}, "not in both"),
        (
            "/rerank",
            DOCUMENTS | {"texts": ["man"]},
            "documents and texts, which differ: give what is to be ranked once",
        ),
        ("/v1/rerank", DOCUMENTS | {"texts": ["man"]}, "the body has documents and texts, which differ"),
        ("/rerank", {"query": "who", "candidates": WORDS, "passages": [{"text": "a"}]}, "candidates and passages"),
        ("/rerank", {"query": "who", "texts": "man"}, "texts: Input should be a valid array"),
        ("/rerank", [DOCUMENTS], "Input should be an object"),
    ],
)
async def test_a_body_that_tells_nothing_is_in_the_dialect_of_its_path(path: str, body: Any, says: str) -> None:
    """The error message uses the field names of the path's own dialect."""
    async with running_app(lookup()) as running:
        response = await running.client.post(path, json=body)

    assert says in assert_error(response, 422, "invalid_input")
