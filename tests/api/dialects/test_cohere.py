"""Cohere's clients, v1 and v2, and those that read the same answer: Jina's, vLLM's, Xinference's, Elasticsearch's."""

import json
from operator import itemgetter
from typing import Any

import pytest
from support.app import assert_error, running_app
from support.dialects import BEST_FIRST, IMAGE, RAW, SIGMOIDS, WORDS, ask, in_parts
from support.models import tiny_cross_encoder
from support.scorers import encoded_lookup, lookup

from bandrank.api.dialects import cohere, pair_scores
from bandrank.settings import Settings

BODY = {"model": "rerank-v3.5", "query": "who", "documents": WORDS}
QUERIES = ("who", "who is it")  # of one word piece, and of three
PATHS = ("/v1/rerank", "/v2/rerank")
SENT: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere 5, v1": ("/v1/rerank", BODY),
    "cohere 7, v2": ("/v2/rerank", BODY | {"max_tokens_per_doc": 4096, "priority": 0}),
    "langchain-cohere": ("/v2/rerank", BODY | {"top_n": 4, "max_tokens_per_doc": None}),
    "litellm, to v2": ("/v2/rerank", BODY | {"top_n": 4, "return_documents": True}),
    "jina": ("/v1/rerank", BODY | {"top_n": 10, "model": "jina-reranker-v2-base-multilingual"}),
    "vllm": ("/rerank", BODY | {"truncate_prompt_tokens": -1, "user": "a", "mm_processor_kwargs": None}),
    "xinference": (
        "/v1/rerank",
        BODY
        | {"top_n": None, "max_chunks_per_doc": None, "return_documents": None, "return_len": None, "kwargs": "{}"},
    ),
    "ragflow, to siliconflow": ("/v1/rerank", BODY | {"top_n": 4, "max_chunks_per_doc": 1024, "overlap_tokens": 80}),
    "ragflow, to xinference": ("/v1/rerank", BODY | {"return_documents": "true", "return_len": "true"}),
    "dify": ("/rerank", BODY | {"top_n": None, "return_documents": True}),
    "open-webui": ("/v1/rerank", BODY | {"top_n": 4}),
    "infinity": ("/rerank", BODY | {"raw_scores": False, "return_documents": False}),
    "llama.cpp": ("/v1/reranking", BODY | {"top_n": 0}),
    "trpc-agent-go": ("/v1/rerank", BODY | {"top_n": -1}),
    "opensearch": ("/v2/rerank", BODY | {"top_n": 4}),
    "contextual": ("/v1/rerank", BODY | {"top_n": 4, "metadata": ["", " ", "\n", ""]}),
    "others with a field of that name": ("/v1/rerank", BODY | {"top_n": 4, "metadata": [1, "a"]}),
}


@pytest.mark.parametrize("client", SENT)
async def test_every_client_gets_scores_and_documents(client: str) -> None:
    path, body = SENT[client]
    answer = (await ask(path, body)).json()

    assert answer.keys() == {"id", "model", "results", "usage", "meta"}
    assert answer["model"] == "tiny"
    assert [result["index"] for result in answer["results"]] == BEST_FIRST
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == pytest.approx([SIGMOIDS[index] for index in BEST_FIRST], rel=1e-6)
    wanted = body.get("return_documents") in {True, "true"}
    assert [result.get("document") for result in answer["results"]] == [
        {"text": WORDS[index]} if wanted else None for index in BEST_FIRST
    ]
    assert answer["usage"] == {"prompt_tokens": 10, "total_tokens": 10, "completion_tokens": 0}
    assert answer["meta"]["tokens"] == {"input_tokens": 10, "output_tokens": 0}
    assert answer["meta"]["api_version"] == {"version": "1" if path == "/v1/rerank" else "2"}


async def test_metadata_is_ranked_with_its_document() -> None:
    """Contextual AI's clients send a text for each document, which follows it on a line; documents return as sent."""
    metadata = ["who", "", "was over there", "the man"]
    joined = [f"{text}\n{more}" if more else text for text, more in zip(WORDS, metadata, strict=True)]
    bodies = ({"metadata": metadata, "return_documents": True}, {"documents": joined}, {"metadata": metadata[:3]})
    async with running_app(tiny_cross_encoder()) as running:
        answers = [await running.client.post("/v1/rerank", json=BODY | body) for body in bodies]
    answer, expected = (each.json() for each in answers[:2])

    def scores(of: dict[str, Any]) -> list[tuple[int, float]]:
        return [(result["index"], result["relevance_score"]) for result in of["results"]]

    assert scores(answer) == scores(expected)
    assert all(result["document"] == {"text": WORDS[result["index"]]} for result in answer["results"])
    assert len({score for _, score in scores(answer)}) == len(WORDS)
    assert "metadata: expected a text for each of 4 documents, got 3" in assert_error(answers[2], 422, "invalid_input")


@pytest.mark.parametrize(("num_documents", "units"), [(1, 1), (100, 1), (101, 2), (200, 2)])
async def test_search_units_are_counted_as_cohere_counts_them(num_documents: int, units: int) -> None:
    """Up to a hundred documents are one search unit; LangChain4j's client fails on an answer without units."""
    answers = [(await ask(path, BODY | {"documents": ["man"] * num_documents})).json() for path in PATHS]

    assert [answer["meta"]["billed_units"] for answer in answers] == [{"search_units": units}] * 2


def parse_strictly(item: dict[str, Any]) -> None:
    """Reads a result as Elasticsearch's parser for Cohere does; an unknown key or a null raises ValueError."""
    if unknown := item.keys() - {"index", "relevance_score", "document"}:
        raise ValueError(f"unknown fields {unknown}")
    if type(item["index"]) is not int or type(item["relevance_score"]) is not float:
        raise ValueError("an index or a score of another type")
    if "document" in item and not (isinstance(item["document"], dict) and isinstance(item["document"]["text"], str)):
        raise ValueError("a document that is no object with a text")


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"])
@pytest.mark.parametrize("return_documents", [True, False])
async def test_a_strict_parser_reads_every_result(path: str, return_documents: bool) -> None:
    """In bandrank's own format results name the stage of a cascade; in Cohere's they must not."""
    body = BODY | {"return_documents": return_documents}
    settings = Settings(device="cpu", cascade_depth=2)
    async with running_app(lookup(**RAW), fast=encoded_lookup(**RAW), settings=settings) as running:
        answer = (await running.client.post(path, json=body)).json()

    assert len(answer["meta"]["stages"]) == 2
    for item in answer["results"]:
        parse_strictly(item)


async def test_integers_never_stand_for_scores() -> None:
    """OpenSearch casts a parsed score to Double, which fails for `1`, because its JSON parser makes that an Integer."""
    async with running_app(lookup(man=100.0, she=-200.0)) as running:
        text = (await running.client.post("/v2/rerank", json=BODY)).text

    made = [result["relevance_score"] for result in json.loads(text, parse_float=str)["results"]]
    assert made == ["1.0", "0.5", "0.5", "0.0"]


async def test_documents_may_be_objects() -> None:
    """An object is ranked by its `text` and comes back as it was sent; a plain text comes back as an object."""
    documents = [{"text": "man", "title": "she", "n": [None]}, "he", {"text": "she"}]
    answer = (await ask("/v1/rerank", BODY | {"documents": documents, "return_documents": True})).json()

    assert [result["document"] for result in answer["results"]] == [{"text": "he"}, documents[0], documents[2]]


@pytest.mark.parametrize(
    ("documents", "best"),
    [
        ([{"title": "she"}, {"title": "he", "text": "she"}], 1),
        ([{"title": None, "body": "he"}, {"title": "man"}], 0),
        ([{"title": {"man": 1}}, "he"], 1),
        ([{"meta": {"name": "she"}}, {"meta": {"name": "he"}}], 1),
        ([{"meta.name": "she", "meta": {"name": "he"}}, {"title": "man"}], 1),
        ([{"meta.name": None, "meta": {"name": "he", "more": "she"}}, {"title": "man"}], 0),
    ],
)
async def test_rank_fields_choose_what_is_ranked(documents: list[Any], best: int) -> None:
    """The values are joined in the order of `rank_fields`. A name with dots may lead into nested objects, and a missing
    field counts as empty.
    """
    fields = ["title", "body", "meta.name"]
    answer = (await ask("/v1/rerank", BODY | {"documents": documents, "rank_fields": fields})).json()

    assert answer["results"][0]["index"] == best


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_texts_may_come_in_parts(path: str) -> None:
    """Clients of vLLM may send a text in parts, each of which becomes a line, and a single document without a list.
    Those of Jina may send a query as an object.
    """
    query = in_parts("who", "is it")
    bodies = [
        {"query": "who\nis it", "documents": ["man\nshe", "he"]},
        {"query": query, "documents": [in_parts("man", "she"), in_parts("he")]},
        {"query": {"text": "who\nis it"}, "documents": [{"text": "man\nshe"}, "he"]},
        {"query": query, "documents": [in_parts("man", "she") | {"text": None}, "he"]},
        {"query": query, "documents": [{"text": "man\nshe", "content": [7]}, "he"]},
        {"query": query, "documents": "he"},
        {"query": query, "documents": in_parts("he")},
    ]
    async with running_app(tiny_cross_encoder()) as running:
        asked = [await running.client.post(path, json=body | {"return_documents": True}) for body in bodies]
    answers = [answer.json()["results"] for answer in asked]

    several = [{each["index"]: each["relevance_score"] for each in answer} for answer in answers]
    assert several[1:5] == [pytest.approx(several[0], abs=1e-6)] * 4
    assert several[5:] == [pytest.approx({0: several[0][1]}, abs=1e-6)] * 2
    texts = [{each["index"]: each["document"]["text"] for each in answer} for answer in answers]
    assert texts == [{0: "man\nshe", 1: "he"}] * 5 + [{0: "he"}] * 2


async def test_parts_are_a_field_like_others_to_rank() -> None:
    """The parts of a document, an image among them, count for nothing if `rank_fields` names other fields."""
    documents = [{"content": IMAGE["content"], "title": "she"}, {"content": [], "title": "he"}]
    answer = (await ask("/v1/rerank", BODY | {"documents": documents, "rank_fields": ["title"]})).json()

    assert [each["index"] for each in answer["results"]] == [1, 0]


@pytest.mark.parametrize("path", ["/sglang/v1/rerank", "/infinity/rerank", "/voyage/v1/rerank", "/v1/models/rerank"])
async def test_other_services_take_no_parts(path: str) -> None:
    """The dialects of other services also refuse a single text in place of a list of documents."""
    async with running_app(lookup()) as running:
        for fields in (
            {"documents": "man"},
            {"documents": [in_parts("man")]},
            {"query": in_parts("who")},
            {"query": {"text": "who"}},
        ):
            response = await running.client.post(path, json=BODY | fields)
            assert response.status_code == 422


async def test_what_was_ranked_comes_back_of_an_object_without_a_text() -> None:
    """Clients look for `text`: if it is missing or null, the ranked text takes its place; any other value is kept."""
    documents = [{"a": "he", "b": "man"}, {"a": "she", "text": None}, {"a": "x", "text": ["p", 1]}]
    body = BODY | {"documents": documents, "rank_fields": ["b", "a"], "return_documents": True}
    answer = (await ask("/v1/rerank", body)).json()

    assert [result["document"] for result in answer["results"]] == [
        {"text": "man\nhe", "a": "he", "b": "man"},
        {"a": "x", "text": ["p", 1]},
        {"text": "she", "a": "she"},
    ]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"documents": ["he", {"title": "man"}]}, "documents.1: expected a text, or an object with `text` or with"),
        ({"documents": [{"text": 7}]}, "documents.0: expected a text, or an object with `text`"),
        ({"documents": [{"image": "http://a/b.png"}]}, "documents.0: expected a text"),
        (
            {"documents": ["he", {"a": 1}, {"text": "man", "b": None}], "rank_fields": ["a", "b.c"]},
            "documents.2: none of the rank_fields is there: 'a', 'b.c'",
        ),
        ({"documents": [{"a": {"b": {"c": 1}}}], "rank_fields": ["a.b"]}, "none of the rank_fields is there: 'a.b'"),
        ({"documents": [{"a": {"b": [1]}}], "rank_fields": ["a.b.c"]}, "documents.0: none of the rank_fields"),
        ({"documents": [{"a": 1}], "rank_fields": ["x" * 10**6, *map(str, range(63))]}, ", '0', '1', and 61 more"),
        ({"rank_fields": ["a", "a"]}, "no field may come twice"),
        ({"rank_fields": [str(number) for number in range(65)]}, "at most 64 items"),
        ({"top_n": -2}, "top_n"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"return_documents": 1}, "return_documents"),
        ({"budget_ms": 0}, "budget_ms"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": [2]}, "truncate_prompt_tokens"),
        ({"priority": "high"}, "priority"),
        ({"max_tokens_per_query": "2"}, "max_tokens_per_query"),
        ({"chat_template_kwargs": "instruction"}, "chat_template_kwargs"),
        ({"documents": ["he", IMAGE]}, "documents.1: a part of type 'image_url' cannot be ranked"),
        ({"documents": IMAGE}, "documents.0: a part of type 'image_url' cannot be ranked"),
        ({"documents": {"text": "man"}}, "documents: Input should be a valid array"),
        ({"documents": [{"content": []}]}, "documents.0: content must have parts"),
        ({"documents": [{"content": "man"}]}, "documents.0: expected a text"),
        (
            {"documents": [{"content": [{"type": "text"}]}]},
            "documents.0: each part of content must have the type 'text'",
        ),
        ({"documents": [{"content": ["man"]}]}, "documents.0: each part of content must have the type 'text'"),
        ({"query": IMAGE}, "query: a part of type 'image_url' cannot be ranked"),
        ({"query": {"content": [{"type": "text", "text": " "}]}}, "query must not be empty"),
        ({"query": {"text": " "}}, "query must not be empty"),
        ({"query": {"text": "who", "content": []}}, "query: content must have parts"),
        ({"query": {"text": ["who"]}}, "query: Input should be a valid string"),
    ],
)
async def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], says: str) -> None:
    async with running_app(lookup()) as running:
        response = await running.client.post("/v1/rerank", json=BODY | fields)

    assert says in assert_error(response, 422, "invalid_input")


@pytest.mark.parametrize(
    "fields", [{"raw_scores": True}, {"use_activation": False}, {"activation": "false"}, {"softmax": False}]
)
async def test_raw_scores_go_by_four_names(fields: dict[str, Any]) -> None:
    """`raw_scores` is infinity's name; the others are those of three generations of vLLM."""
    answer = (await ask("/rerank", BODY | fields)).json()

    assert [result["relevance_score"] for result in answer["results"]] == [4.0, 1.5, 0.0, -2.0]
    assert answer["meta"]["score"] == "raw"


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"relevant_spans": {"mode": "enabled", "threshold": 0.1}}, ["results"]),
        ({"relevant_spans": {}, "truncate_prompt_tokens": 512}, ["results"]),
        ({"truncate_prompt_tokens": 3}, ["truncate_prompt_tokens"]),
        ({"max_tokens_per_query": 2, "truncate_prompt_tokens": 5}, ["truncate_prompt_tokens", "max_tokens_per_query"]),
        ({"max_tokens_per_query": 3, "max_tokens_per_doc": 1}, None),
        ({"max_tokens_per_query": 0}, None),
        ({"max_tokens_per_query": None}, None),
        ({"truncate_prompt_tokens": 10**400, "priority": 2**63 - 1}, None),
        ({"truncate_prompt_tokens": 512, "truncation_side": "left"}, ["truncate_prompt_tokens"]),
        ({"priority": 999, "truncate_prompt_tokens": 4, "truncation_side": "right"}, None),
        ({"priority": 0, "truncate_prompt_tokens": -1, "max_tokens_per_doc": 512}, None),
        ({"relevant_spans": {"mode": "disabled"}, "max_tokens_per_doc": None}, None),
    ],
)
async def test_the_answer_warns_of_what_was_not_done(fields: dict[str, Any], warned: list[str] | None) -> None:
    """The answer warns if the scorer gives no spans, or if a limit was not applied."""
    answer = (
        await ask("/v2/rerank", BODY | {"query": QUERIES[bool(fields.get("max_tokens_per_query"))]} | fields)
    ).json()

    warnings = answer["meta"].get("warnings")
    assert (warnings and [warning.split()[0].rstrip(":") for warning in warnings]) == warned
    assert all(result.keys() == {"index", "relevance_score"} for result in answer["results"])


@pytest.mark.parametrize(("sent", "means"), [(None, 0), (0, 0), (7, 7), (-7, 0)])
def test_a_priority_is_the_requests(sent: int | None, means: int) -> None:
    """In both of vLLM's dialects a negative priority counts as 0: clients may send it, but nothing goes before 0."""
    pairs = pair_scores.PairsRequest.model_validate({"text_1": "who", "text_2": WORDS, "priority": sent})

    assert cohere.read(cohere.CohereRequest.model_validate(BODY | {"priority": sent})).options.priority == means
    assert pair_scores.read(pairs).options.priority == means


async def test_pairs_are_cut_to_the_tokens_that_a_prompt_may_have() -> None:
    """In both of vLLM's dialects a document is cut to the tokens that the query leaves, but never from the left."""
    texts = ["the man was " * 10, "she", "there who is it " * 5]
    async with running_app(tiny_cross_encoder()) as running:

        async def scores(path: str, **body: Any) -> list[float]:
            answer = (await running.client.post(path, json=body)).json()
            found = answer.get("results") or answer["data"]
            return [each.get("relevance_score", each.get("score")) for each in sorted(found, key=itemgetter("index"))]

        rerank, cut = {"query": "who is it", "documents": texts}, {"truncate_prompt_tokens": 6 + 7}
        pairs = {"text_1": "who is it", "text_2": texts}
        expected = await scores("/rerank", query="who is it", documents=[" ".join(text.split()[:7]) for text in texts])
        whole = await scores("/rerank", **rerank)
        asked = [await scores("/rerank", **rerank, **cut), await scores("/score", **pairs, **cut)]
        left = [await scores("/rerank", **rerank, **cut, truncation_side="left")]
        left.append(await scores("/score", **pairs, **cut, truncation_side="left"))

    assert asked == [pytest.approx(expected, abs=1e-6)] * 2
    assert left == [pytest.approx(whole, abs=1e-6)] * 2
    assert expected != pytest.approx(whole, abs=1e-3)


async def test_our_own_options_may_be_added() -> None:
    """Most clients let one send additional parameters, so bandrank's own options work in Cohere's dialect."""
    async with running_app(lookup(**RAW), fast=encoded_lookup(**RAW)) as running:
        answer = await running.client.post("/v2/rerank", json=BODY | {"strategy": "fast", "budget_ms": 60000})

    assert answer.json()["meta"]["strategy"] == "fast"


async def test_echoed_documents_are_bounded() -> None:
    """The limit applies to the documents as JSON, with all fields of an object."""
    settings = Settings(device="cpu", max_answer_bytes=100)
    documents = [{"text": "man", "more": "x" * 90}]
    async with running_app(lookup(), settings=settings) as running:
        body = BODY | {"documents": documents, "return_documents": True}
        assert_error(await running.client.post("/v1/rerank", json=body), 413, "input_too_large")
