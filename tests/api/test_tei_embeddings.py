"""POST /embed and /embed_sparse, as in text-embeddings-inference: the vectors and terms by which texts are ranked."""

from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import InferenceClient
from support.app import assert_error, running_app
from support.models import tiny_bi_encoder
from support.precomputing import tiny_splade
from support.scorers import lookup
from support.serving import files_of
from support.threaded import served
from support.tokenizer import tiny_tokenizer
from uvicorn import Config

from bandrank.api.app import create_app
from bandrank.api.service import Service
from bandrank.models.ragged import Ragged
from bandrank.models.texts import TextEncoder
from bandrank.models.wording import Wording
from bandrank.serving import assemble
from bandrank.settings import Settings

TEXTS = ["The man! She said that he was", "", "who is the man", "she"]
EXACT = Settings(device="cpu", cache_dtype="float32")
WORDED = {"query_wording": Wording("who is {text}")}


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
async def test_vectors_are_those_of_the_other_formats(similarity: str) -> None:
    """They have unit length, unless the model compares by the dot product and the request wants them as they are."""
    async with running_app(tiny_bi_encoder(similarity=similarity, **WORDED), settings=EXACT) as running:

        async def embedded(path: str, **fields: Any) -> Any:
            answer = (await running.client.post(path, json={"inputs": TEXTS, "input": TEXTS} | fields)).json()
            vectors = [each["embedding"] for each in answer["data"]] if isinstance(answer, dict) else answer
            return np.array(vectors)

        for query in ({}, {"prompt_name": "query", "input_type": "query"}):
            own = await embedded("/v1/embeddings", **query)
            unit = own / np.linalg.norm(own, axis=1, keepdims=True)
            np.testing.assert_allclose(await embedded("/embed", **query), unit, atol=1e-6)
            np.testing.assert_allclose(await embedded("/embed", normalize=None, **query), unit, atol=1e-6)
            np.testing.assert_array_equal(await embedded("/embed", normalize=False, **query), own)


@pytest.mark.parametrize("text", ["the man", ["the man", "she"]])
async def test_one_text_may_come_alone(text: str | list[str]) -> None:
    async with running_app(tiny_bi_encoder(max_tokens=8)) as running:
        answer = await running.client.post("/embed", json={"inputs": text, "truncate": True})
        cut = await running.client.post("/embed", json={"inputs": ["man " * 10, "she"]})

    assert np.array(answer.json()).shape == (1 if isinstance(text, str) else 2, 32)
    assert not [name for name in answer.headers if name.startswith("x-truncated")]
    assert (cut.headers["X-Truncated-Tokens"], cut.headers["X-Truncated-Candidates"]) == ("4", "1")


def test_hugging_faces_client_embeds() -> None:
    service = Service(assemble([files_of(tiny_bi_encoder())], EXACT), EXACT)
    with served(Config(create_app(service), log_level="error")) as (host, port):
        client = InferenceClient(f"http://{host}:{port}/embed")
        vectors = client.feature_extraction("the man", normalize=False, truncate=True)

    assert vectors.shape == (1, 32)


async def test_terms_are_those_that_rank() -> None:
    """Their products with the query's terms are the raw scores; their ids ascend, and no weight is 0."""
    scorer = tiny_splade(**WORDED)
    encoder = TextEncoder(tiny_tokenizer(), tiny_splade())  # without words around queries
    async with running_app(scorer, settings=EXACT) as running:
        answer = await running.client.post("/embed_sparse", json={"inputs": TEXTS})
        query = await running.client.post("/embed_sparse", json={"inputs": "the man", "prompt_name": "query"})
        ranked = await running.rerank({"query": "the man", "candidates": TEXTS, "raw_scores": True})

    for text, terms in zip(TEXTS, answer.json(), strict=True):
        with torch.inference_mode():
            expected = scorer.encode_candidates(Ragged.from_token_ids([encoder.query(text)[0]])).values
        np.testing.assert_allclose([[term["index"], term["value"]] for term in terms], expected, atol=1e-5)
    [of_query] = query.json()
    weights = {term["index"]: term["value"] for term in of_query}
    for result in ranked.json()["results"]:
        terms = answer.json()[result["index"]]
        score = sum(weights.get(term["index"], 0.0) * term["value"] for term in terms)
        assert result["relevance_score"] == pytest.approx(score * scorer.config.score_scale, rel=1e-4)


async def test_queries_that_a_table_reads_are_refused() -> None:
    async with running_app(tiny_splade(query_table=True)) as running:
        documents = await running.client.post("/embed_sparse", json={"inputs": "man"})
        queries = await running.client.post("/embed_sparse", json={"inputs": "man", "prompt_name": "query"})

    assert documents.status_code == 200
    message = "'tiny' reads queries by a table of weights, and embeds documents only"
    assert assert_error(queries, 422, "invalid_input") == message


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/embed", "embeddings: none of its scorers is a bi-encoder"),
        ("/embed_sparse", "sparse embeddings: none of its scorers is a SPLADE"),
    ],
)
async def test_what_embeds_nothing_says_so(path: str, what: str) -> None:
    async with running_app(lookup()) as running:
        answer = await running.client.post(path, json={"inputs": "man"})

    expected = f"model 'tiny' gives no {what}; neither does any other that is served here"
    assert assert_error(answer, 400, "no_embeddings") == expected


async def test_an_answer_of_terms_is_bounded() -> None:
    async with running_app(tiny_splade(), settings=Settings(device="cpu", max_answer_bytes=100)) as running:
        answer = await running.client.post("/embed_sparse", json={"inputs": TEXTS})

    assert assert_error(answer, 413, "input_too_large") == "the embeddings take more than 100 bytes; send fewer texts"
