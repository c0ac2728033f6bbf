"""Dialects of one service each: DashScope, Voyage, Mixedbread, ZeroEntropy, infinity, Pinecone, SGLang and NIM."""

from typing import Any

import pytest
from support.app import assert_error, running_app
from support.dialects import BEST_FIRST, DASHSCOPE, RAW, SIGMOIDS, WORDS, ask, assert_invalid
from support.scorers import lookup

from bandrank.settings import Settings

BODY = {"query": "who", "documents": WORDS}
BEST_TWO = pytest.approx([SIGMOIDS[index] for index in BEST_FIRST[:2]], rel=1e-6)


def column(items: list[dict[str, Any]], name: str) -> list[Any]:
    """A field of each item, or None where it is absent."""
    return [item.get(name) for item in items]


@pytest.mark.parametrize("fields", [{"top_k": None, "truncation": True}, {"top_k": 4}, {"truncation": "false"}])
async def test_voyage_is_told_by_its_own_fields(fields: dict[str, Any]) -> None:
    """Voyage's SDK always sends `top_k` and `truncation`, of which at least `truncation` is not null."""
    answer = (await ask("/v1/rerank", BODY | fields | {"model": "rerank-2.5"})).json()

    assert answer.keys() == {"object", "data", "model", "usage"}
    assert column(answer["data"], "index") == BEST_FIRST
    assert answer["usage"]["total_tokens"] == 10
    assert all(item.keys() == {"index", "relevance_score"} for item in answer["data"])


@pytest.mark.parametrize(("path", "limit"), [("/v1/rerank", "top_k"), ("/voyage/v1/rerank", "top_n")])
async def test_voyage_gives_texts_back_as_texts(path: str, limit: str) -> None:
    """Fireworks has Voyage's format, but for the name of the limit."""
    answer = (await ask(path, BODY | {limit: 2, "return_documents": True})).json()

    assert column(answer["data"], "document") == ["he", "man"]
    assert column(answer["data"], "relevance_score") == BEST_TWO


async def test_mixedbread() -> None:
    """Mixedbread calls the documents `input`; they are texts or objects, and come back as they were sent."""
    sent = [{"title": "she", "text": "he"}, "man", {"text": "she"}]
    body = {"model": "mixedbread-ai/mxbai-rerank-large-v2", "query": "who", "input": sent, "top_k": 2}
    answer = (await ask("/v1/reranking", body | {"return_input": True, "rewrite_query": False})).json()
    by_title = (
        await ask("/v1/reranking", body | {"input": [*sent[:2], {"title": ""}], "rank_fields": ["title"]})
    ).json()

    assert answer.keys() == {"usage", "model", "data", "object", "top_k", "return_input"}
    assert (answer["top_k"], answer["return_input"], answer["object"]) == (2, True, "list")
    assert column(answer["data"], "input") == sent[:2]
    assert column(answer["data"], "score") == BEST_TWO
    assert column(by_title["data"], "index") == [1, 2]  # the third is empty, which scores 0
    assert column(by_title["data"], "input") == [None, None]


async def test_an_input_without_a_text_is_named_to_mixedbread() -> None:
    async with running_app(lookup()) as running:
        for fields, says in (({}, "input.1: expected a text"), ({"rank_fields": ["a"]}, "input.1: none of the rank_")):
            body = {"query": "who", "input": ["man", {"title": "she"}]} | fields
            response = await running.client.post("/v1/reranking", json=body)

            assert says in assert_error(response, 422, "invalid_input")


@pytest.mark.parametrize("latency", [None, "fast", "slow"])
async def test_zeroentropy(latency: str | None) -> None:
    """The answer names the latency mode, of which there is only one, and counts bytes in UTF-8."""
    body = {"query": "é", "documents": WORDS, "top_n": 2, "latency": latency, "model": "zerank-1"}
    answer = (await ask("/v1/models/rerank", body)).json()

    assert column(answer["results"], "relevance_score") == BEST_TWO
    assert (answer["actual_latency_mode"], answer["total_bytes"]) == ("fast", 2 + 3 + 3 + 2 + 3)
    assert 0 <= answer["inference_latency"] <= answer["e2e_latency"] < 60


async def test_pinecone_under_its_prefix() -> None:
    """Documents come back as they were sent, a plain text as an object, unless the client asks for none."""
    sent = [{"title": "she", "text": "he"}, "man", {"text": "she"}]
    body = {"model": "bge-reranker-v2-m3", "query": "who", "documents": sent, "top_n": 2, "parameters": {}}
    answer = (await ask("/pinecone/rerank", body | {"rank_fields": ["text"], "documents": [sent[0], sent[2]]})).json()
    fields = [{"id": "1", "title": "he"}, {"title": "man", "text": {"raw": 1}}]
    titled = (await ask("/pinecone/rerank", body | {"rank_fields": ["title"], "documents": fields})).json()
    mixed = (await ask("/pinecone/rerank", body)).json()
    bare = (await ask("/pinecone/rerank", body | {"return_documents": False})).json()

    assert answer.keys() == {"model", "data", "usage"}
    assert answer["usage"] == {"rerank_units": 1}
    assert column(answer["data"], "document") == [sent[0], sent[2]]
    assert column(titled["data"], "document") == fields
    assert column(mixed["data"], "document") == [sent[0], {"text": "man"}]
    assert column(mixed["data"], "score") == BEST_TWO
    assert all(item.keys() == {"index", "score"} for item in bare["data"])


async def test_infinity_under_its_prefix() -> None:
    """Documents come back as plain texts, as litellm's route for infinity needs them."""
    body = BODY | {"model": "BAAI/bge-reranker-base", "top_n": 2, "return_documents": True}
    answer = (await ask("/infinity/rerank", body)).json()
    raw = (await ask("/infinity/rerank", BODY | {"raw_scores": True})).json()

    assert answer.keys() == {"object", "results", "model", "usage", "id", "created"}
    assert answer["object"] == "rerank"
    assert column(answer["results"], "document") == ["he", "man"]
    assert column(raw["results"], "relevance_score") == [4.0, 1.5, 0.0, -2.0]
    assert all("document" not in item for item in raw["results"])


async def test_dashscope() -> None:
    """Results are in `output`; clients of multimodal models have texts in objects."""
    sent = {"query": {"text": "who"}, "documents": ["man", {"text": "she"}, {"text": "he"}, "you"]}
    parameters = {"top_n": 2, "return_documents": True, "fps": 1.0}
    plain = (await ask(DASHSCOPE, {"input": BODY}, **{"X-Request-Id": "7a"})).json()
    named = (await ask(DASHSCOPE, {"input": sent, "parameters": parameters})).json()["output"]["results"]

    assert plain.keys() == {"output", "usage", "request_id"}
    assert (plain["usage"]["total_tokens"], plain["request_id"]) == (10, "7a")
    assert all(item.keys() == {"index", "relevance_score"} for item in plain["output"]["results"])
    assert column(named, "document") == [{"text": "he"}, {"text": "man"}]
    assert column(named, "relevance_score") == BEST_TWO


async def test_dashscope_names_its_errors() -> None:
    async with running_app(lookup(), settings=Settings(device="cpu", unknown_model="refuse")) as running:
        for fields, code, says in (
            ({"input": BODY | {"documents": ["a", {"image": "b"}]}}, "InvalidParameter", "input.documents.1"),
            ({"parameters": {"instruct": 7}}, "InvalidParameter", "parameters.instruct"),
            ({"model": "gte-rerank-v2"}, "ModelNotFound", "gte-rerank-v2"),
        ):
            body, headers = {"input": BODY} | fields, {"X-Request-Id": "7a"}
            error = (await running.client.post(DASHSCOPE, json=body, headers=headers)).json()
            assert (error["code"], error["request_id"]) == (code, "7a")
            assert says in error["message"]


async def test_sglang_under_its_prefix() -> None:
    """The answer is a bare list, with the documents' texts unless the client asks for none."""
    answer = (await ask("/sglang/v1/rerank", BODY | {"instruct": "judge"})).json()
    without = (await ask("/sglang/v1/rerank", BODY | {"return_documents": False, "top_n": 2})).json()

    assert column(answer, "document") == ["he", "man", "you", "she"]
    assert column(answer, "index") == BEST_FIRST
    assert [item.keys() for item in without] == [{"index", "score"}] * 2


async def test_sglang_in_parts() -> None:
    """A query and documents may be bare lists of parts, as of models that read images too, but only of texts."""
    she, image = ({"type": kind, "text": "she"} for kind in ("text", "image_url"))
    answer = (await ask("/sglang/v1/rerank", {"query": [she], "documents": ["he", [she, she]]})).json()
    async with running_app(lookup()) as running:
        response = await running.client.post("/sglang/v1/rerank", json=BODY | {"documents": ["he", [image]]})

    assert column(answer, "document") == ["he", "she\nshe"]
    assert "documents.1: a part of type 'image_url' cannot" in assert_error(response, 422, "invalid_input")


@pytest.mark.parametrize(
    "path", ["/v1/ranking", "/ranking", "/v1/retrieval/nvidia/reranking", "/v1/retrieval/nvidia/a-b_2/reranking"]
)
async def test_nim_is_given_logits(path: str) -> None:
    body = {"model": "nvidia/rerank", "query": {"text": "who"}, "passages": [{"text": word} for word in WORDS]}
    answer = (await ask(path, body | {"truncate": "END"})).json()

    assert column(answer["rankings"], "index") == BEST_FIRST
    assert column(answer["rankings"], "logit") == [4.0, 1.5, 0.0, -2.0]


@pytest.mark.parametrize("top_k", [2, 0, -1, None, 9])
async def test_nim_gets_as_many_as_litellm_asks_for(top_k: int | None) -> None:
    """The service must apply `top_k`, because litellm does not cut the answer itself."""
    body = {"query": {"text": "who"}, "passages": [{"text": word} for word in WORDS]}
    answer = (await ask("/v1/ranking", body | {"top_k": top_k})).json()

    assert column(answer["rankings"], "index") == (BEST_FIRST[:2] if top_k == 2 else BEST_FIRST)


async def test_nim_ranks_no_images() -> None:
    body = {"query": {"text": "who"}, "passages": [{"text": "man"}, {"image": "data:image/png;base64,AAAA"}]}
    async with running_app(lookup(**RAW)) as running:
        response = await running.client.post("/v1/ranking", json=body)

    assert "passages.1.text" in assert_error(response, 422, "invalid_input")


@pytest.mark.parametrize("fields", [{"query": " "}, {"documents": []}, {"top_n": -2}], ids=str)
async def test_infinity_lists_what_is_wrong(fields: dict[str, Any]) -> None:
    """The client of infinity is generated, and reads a list of faults with place, message and type."""
    async with running_app(lookup()) as running:
        response = await running.client.post("/infinity/rerank", json=BODY | fields)
        elsewhere = await running.client.post("/v1/rerank", json=BODY | fields)
        too_large = await running.client.post("/infinity/rerank", json=BODY | {"documents": ["a"] * 3000})

    assert assert_invalid(response) == assert_error(elsewhere, 422, "invalid_input")
    assert "too many candidates" in assert_error(too_large, 413, "input_too_large")
