"""Clients of text-embeddings-inference: haystack, llama-index, Milvus, Elasticsearch's `hugging_face` service."""

from typing import Any

import pytest
from support.app import running_app
from support.dialects import BEST_FIRST, SIGMOIDS, WORDS, ask
from support.scorers import lookup

BODY = {"query": "who", "texts": WORDS}
SENT: dict[str, dict[str, Any]] = {
    "haystack": BODY | {"raw_scores": False, "return_text": False, "truncate": None, "truncation_direction": "Right"},
    "llama-index": BODY | {"truncate": True},
    "milvus": BODY | {"truncate": True, "truncation_direction": "Left"},
    "litellm": BODY | {"raw_scores": False, "return_text": False, "truncate": False, "top_n": 2},
    "elasticsearch": {"texts": WORDS, "query": "who", "return_text": False, "top_n": 2},
}
# Without each of these, the model of tei-client, which asks for /info before it ranks, is not valid.
FIELDS_OF_INFO = {
    "docker_label",
    "max_batch_requests",
    "max_batch_tokens",
    "max_client_batch_size",
    "max_concurrent_requests",
    "max_input_length",
    "model_dtype",
    "model_id",
    "model_type",
    "sha",
    "tokenization_workers",
    "version",
}


@pytest.mark.parametrize("client", SENT)
async def test_clients_get_a_bare_list_of_all_texts(client: str) -> None:
    """Haystack posts to `/rerank` whatever its base URL is; clients that send `top_n` apply it themselves."""
    results = (await ask("/rerank", SENT[client])).json()

    assert [result.keys() for result in results] == [{"index", "score"}] * 4
    assert [result["index"] for result in results] == BEST_FIRST
    assert [result["score"] for result in results] == pytest.approx([SIGMOIDS[i] for i in BEST_FIRST], rel=1e-6)


async def test_texts_and_raw_scores_come_on_request() -> None:
    results = (await ask("/rerank", BODY | {"raw_scores": True, "return_text": True})).json()

    assert [(result["text"], result["score"]) for result in results] == [
        ("he", 4.0),
        ("man", 1.5),
        ("you", 0.0),
        ("she", -2.0),
    ]


async def test_headers_tell_the_times() -> None:
    """Times are in whole milliseconds, as TEI's own load test reads them; other headers count characters and tokens."""
    headers = (await ask("/rerank", BODY)).headers

    assert (headers["x-compute-characters"], headers["x-compute-tokens"]) == (str(3 + 3 + 3 + 2 + 3), "10")
    times = [name for name in headers if name.startswith("x-") and name.endswith("-time")]
    assert sorted(times) == [
        "x-compute-time",
        "x-inference-time",
        "x-queue-time",
        "x-tokenization-time",
        "x-total-time",
    ]
    assert all(headers[name].isdecimal() for name in times)
    assert int(headers["x-inference-time"]) <= int(headers["x-total-time"]) + 1  # each is rounded


async def test_info_tells_clients_how_much_they_may_send() -> None:
    """Clients that split their requests read the largest number of texts from /info."""
    async with running_app(lookup()) as running:
        info = (await running.client.get("/info")).json()
        most = {"query": "who", "texts": ["man"] * info["max_client_batch_size"]}
        answer = await running.client.post("/rerank", json=most)

    assert (info["model_id"], info["model_dtype"]) == ("tiny", "float32")
    assert info["model_type"].keys() == {"reranker"}
    assert info.keys() >= FIELDS_OF_INFO
    assert len(answer.json()) == info["max_client_batch_size"] == 2048
