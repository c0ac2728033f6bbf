"""POST /v1/embeddings: the vectors that a served bi-encoder ranks with, in OpenAI's format."""

import asyncio
import base64
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from starlette.types import Message
from support.accounts import ACCOUNT
from support.app import RunningApp, ask_and_hang_up, assert_openai_error, client_of, running_app
from support.models import tiny_bi_encoder, tiny_cross_encoder
from support.scorers import Gate, encoded_lookup, lookup
from support.serving import files_of, served
from support.slices import counted_slices
from support.tasks import until
from support.tokenizer import tiny_tokenizer

from bandrank.engine.clients import Client
from bandrank.engine.embedding import embed
from bandrank.engine.served import Models
from bandrank.engine.tokenizer import SLICE_CHARACTERS
from bandrank.models.architectures import BiEncoder
from bandrank.models.ragged import Ragged
from bandrank.models.texts import TextEncoder
from bandrank.models.wording import Wording
from bandrank.settings import Settings

TEXTS = ["The man! She said that he was", "", "who is the man", "she", "The man! She said that he was"]
HALF_STEP = 2**-11  # the relative error of float16, in which representations are cached unless told otherwise
TOLERANCE = 1e-6  # of float32 numbers below 1, which must not depend on the other texts
AS_QUERIES = [
    *({name: kind} for name in ("input_type", "task") for kind in ("query", "search_query", "retrieval.query")),
    {"input_type": None, "task": "retrieval.query"},
]
AS_DOCUMENTS = [{"input_type": "document"}, {"task": "retrieval.passage"}, {"task": "text-matching"}, {"task": None}]
EXACT = Settings(device="cpu", cache_dtype="float32")


async def ask(running: RunningApp, texts: Any, **fields: Any) -> httpx.Response:
    return await running.client.post("/v1/embeddings", json={"input": texts, "model": "tiny"} | fields)


async def vectors(running: RunningApp, texts: Any, **fields: Any) -> npt.NDArray[np.float64]:
    """The embeddings of a request, which must succeed."""
    answer = (await ask(running, texts, **fields)).raise_for_status().json()
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return np.array([each["embedding"] for each in answer["data"]])


def own(scorer: BiEncoder, texts: list[str]) -> npt.NDArray[np.float32]:
    """The vectors that a scorer computes for each text by itself."""
    encoder = TextEncoder(tiny_tokenizer(), scorer)
    with torch.inference_mode():
        rows = [scorer.encode_candidates(Ragged.from_token_ids([encoder.query(text)[0]])).values for text in texts]
    return torch.cat(rows).numpy()


def worded(scorer: BiEncoder, document: str = "", query: str = "who is ") -> BiEncoder:
    """The same scorer with words before a query and, if given, before a document."""
    wordings = {"query_wording": Wording(query + "{text}"), "candidate_wording": Wording(document + "{text}")}
    same = BiEncoder(replace(scorer.config, **wordings))
    same.load_state_dict(scorer.state_dict())
    return same


@pytest.mark.parametrize("document", ["", "the man ", "who is "])
async def test_queries_have_words_of_their_own(document: str) -> None:
    """A model's words for queries go around what the request calls queries, and its words for documents around the
    rest.
    """
    scorer = tiny_bi_encoder()
    async with running_app(worded(scorer, document), settings=EXACT) as running:
        documents, *others = [await vectors(running, TEXTS, **fields) for fields in ({}, *AS_DOCUMENTS)]
        queries, *alike = [await vectors(running, TEXTS, **fields) for fields in AS_QUERIES]

    for other in others:
        np.testing.assert_array_equal(documents, other)
    for other in alike:
        np.testing.assert_array_equal(queries, other)
    np.testing.assert_allclose(queries, own(scorer, [f"who is {text}" for text in TEXTS]), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(documents, own(scorer, [document + text for text in TEXTS]), rtol=0, atol=TOLERANCE)
    assert (np.abs(queries - documents).max() > 1000 * TOLERANCE) == (document != "who is ")


@pytest.mark.parametrize("more", [{"separate_towers": True}, {"of_queries": tiny_bi_encoder(num_layers=1).config}])
@pytest.mark.parametrize("words", ["", "the man "])
async def test_queries_have_an_encoder_of_their_own(words: str, more: dict[str, Any]) -> None:
    """A request's queries go through it in one batch, and their cosines with documents are the raw scores."""
    scorer = worded(tiny_bi_encoder(**more), words, "")
    asked = TEXTS[2:]  # /rerank refuses an empty query
    encode, batches = scorer.encode_queries, list[int]()

    def counted(queries: Ragged) -> Ragged:
        batches.append(len(queries))
        return encode(queries)

    async with running_app(scorer, settings=EXACT.model_copy(update={"max_waiting_rows": 1000})) as running:
        documents = await vectors(running, TEXTS)
        scorer.encode_queries = counted  # type: ignore[method-assign]  # a hook
        queries = await vectors(running, asked, input_type="query")
        refused = await ask(running, ["man " * 200] * 9, input_type="query")
        other = await ask(running, "man", task="text-matching")
        of_requests = list(batches)
        scores = np.empty((len(asked), len(TEXTS)))
        for row, query in enumerate(asked):
            ranking = {"query": query, "candidates": TEXTS, "raw_scores": True}
            for result in (await running.rerank(ranking)).json()["results"]:
                scores[row, result["index"]] = result["relevance_score"]

    assert "none for 'text-matching'" in assert_openai_error(other, 422, "invalid_input")
    assert of_requests == [len(asked)]
    np.testing.assert_allclose(queries @ documents.T, scores, rtol=0, atol=TOLERANCE)
    assert np.abs(documents[2:] @ documents.T - scores).max() > 1000 * TOLERANCE
    assert_openai_error(refused, 413, "input_too_large")


async def test_many_queries_wait_for_the_tokenizer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each query waited by itself, each would wait for one of the large texts of another client."""
    sliced = counted_slices(monkeypatch)
    large = ["man " * (SLICE_CHARACTERS // 4)] * 6
    async with served(worded(tiny_bi_encoder()), settings=Settings(device="cpu", tokenizer_threads=1)) as model:
        ranking = asyncio.create_task(model.rank("who", large, client=Client("other")))
        await until(lambda: bool(sliced))
        await embed(Models([model]), [f"she {number}" for number in range(20)], as_queries=True, account=ACCOUNT)
        before = len(sliced)
        await ranking

    assert before <= 2


async def test_too_many_tokens_are_not_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is refused once those read, and half of those expected of the rest, exceed the limit."""
    texts = [f"{number} " + "man " * (SLICE_CHARACTERS // 5) for number in range(12)]  # of 512 tokens, as they are cut
    async with running_app(tiny_bi_encoder(max_tokens=512), settings=Settings(max_waiting_rows=9 * 512)) as running:
        sliced = counted_slices(monkeypatch)
        assert_openai_error(await ask(running, texts), 413, "input_too_large")
    assert len(sliced) == 7


async def test_the_answer_has_this_shape() -> None:
    """The answer has exactly the documented fields, for a single text as for a list."""
    async with running_app(tiny_bi_encoder()) as running:
        one = (await ask(running, "man she", user="me", input_type="query")).json()
        several = (await ask(running, ["man she", "he"])).json()

    assert list(one) == list(several) == ["object", "data", "model", "usage", "meta"]
    assert (one["object"], one["model"]) == ("list", "tiny")
    [item] = one["data"]
    assert (item["object"], item["index"], len(item["embedding"])) == ("embedding", 0, 32)
    assert [each["index"] for each in several["data"]] == [0, 1]
    assert several["data"][0]["embedding"] == item["embedding"]
    assert several["usage"] == {"prompt_tokens": 4 + 3, "total_tokens": 4 + 3}
    assert several["meta"] == {"truncated_texts": 0, "truncated_tokens": 0, "cache_hits": 1, "cache_misses": 1}


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
async def test_embeddings_are_those_of_the_scorer(similarity: Any) -> None:
    """They have unit length only if the scorer compares by the cosine. Texts may come in objects, as in Jina."""
    scorer = tiny_bi_encoder(similarity=similarity)
    async with running_app(scorer, settings=EXACT) as running:
        embedded = await vectors(running, [TEXTS[0], *({"text": text} for text in TEXTS[1:])])

    np.testing.assert_allclose(embedded, own(scorer, TEXTS), atol=TOLERANCE, rtol=TOLERANCE)
    assert np.allclose(np.linalg.norm(embedded, axis=1), 1.0) == (similarity == "cosine")
    assert embedded[0].tolist() == embedded[4].tolist()


async def test_their_dot_product_is_the_score() -> None:
    """The embeddings come from the cache that ranking filled, and their dot product with the query's is the score."""
    scorer = tiny_bi_encoder()
    async with running_app(scorer) as running:
        ranking = {"query": TEXTS[2], "candidates": TEXTS[:2], "raw_scores": True}
        results = (await running.rerank(ranking)).json()["results"]
        answer = (await ask(running, TEXTS[:2])).json()
        embedded = await vectors(running, TEXTS[:3])

    scores = {result["index"]: result["relevance_score"] for result in results}
    assert embedded[:2] @ own(scorer, TEXTS[2:3])[0] == pytest.approx([scores[0], scores[1]], abs=TOLERANCE)
    assert (answer["meta"]["cache_hits"], answer["meta"]["cache_misses"]) == (2, 0)
    np.testing.assert_allclose(embedded, own(scorer, TEXTS[:3]), rtol=HALF_STEP, atol=TOLERANCE)


@pytest.mark.parametrize("field", ["encoding_format", "embedding_type"])
async def test_base64_says_the_same(field: str) -> None:
    """Base64 holds little-endian float32, and null asks for numbers, also for more texts than are written at once."""
    texts = [f"man {'she ' * (number % 50)}" for number in range(600)]
    async with running_app(tiny_bi_encoder(num_layers=1)) as running:
        floats = await vectors(running, texts, **{field: None})
        answer = (await ask(running, texts, **{field: "base64"})).json()

    decoded = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer["data"]]
    np.testing.assert_array_equal(np.stack(decoded), floats)
    assert floats.shape == (600, 32)


async def test_what_is_cut_is_counted() -> None:
    """The answer, its headers and the metrics count what is cut, and the embedding does not depend on it."""
    async with running_app(tiny_bi_encoder(max_tokens=8), settings=EXACT) as running:
        response = await ask(running, ["man " * 10, "she"])
        answer = response.json()
        short = await vectors(running, "man " * 6)
        seen = await running.scrape()

    assert (answer["meta"]["truncated_texts"], answer["meta"]["truncated_tokens"]) == (1, 4)
    assert (response.headers["X-Truncated-Candidates"], response.headers["X-Truncated-Tokens"]) == ("1", "4")
    assert answer["usage"]["total_tokens"] == 8 + 3
    assert answer["data"][0]["embedding"] == pytest.approx(short[0], abs=TOLERANCE)
    assert seen.value("bandrank_truncated_tokens_total") == 4
    assert seen.value("bandrank_embedded_texts_total") == 3
    assert seen.value("bandrank_cache_candidates_total", outcome="miss") == 3
    assert seen.value("bandrank_http_requests_total", path="/v1/embeddings", status="200") == 2
    assert seen.value("bandrank_requests_total") == 0


async def test_the_stage_that_embeds_answers_for_its_model() -> None:
    """The stage of a cascade that precomputes gives the embeddings; the accurate scorer does not run."""
    fast = tiny_bi_encoder()
    async with running_app(lookup(), fast=fast, settings=EXACT) as running:
        embedded = await vectors(running, ["man"])

    np.testing.assert_allclose(embedded, own(fast, ["man"]), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("scorer", [tiny_cross_encoder, encoded_lookup], ids=["reads pairs", "precomputes no vectors"])
async def test_what_is_no_bi_encoder_gives_none(scorer: Any) -> None:
    """The error says that neither this model nor any other that is served gives embeddings."""
    async with running_app(scorer()) as running:
        message = assert_openai_error(await ask(running, "man"), 400, "no_embeddings")

    assert message == (
        "model 'tiny' gives no embeddings: none of its scorers is a bi-encoder; "
        "neither does any other that is served here"
    )


async def test_models_are_named_as_elsewhere() -> None:
    """An unknown name stands for the first model, or is refused. If that model gives no embeddings, the error names
    those that do.
    """
    files = [files_of(lookup(), name="pairs"), files_of(tiny_bi_encoder(), name="vectors")]
    for unknown, status in (("default", 400), ("refuse", 404)):
        async with client_of(Settings(device="cpu", unknown_model=unknown), files) as client:
            body = {"input": "man"}
            known = await client.post("/v1/embeddings", json=body | {"model": "vectors"})
            first = await client.post("/v1/embeddings", json=body)
            other = await client.post("/v1/embeddings", json=body | {"model": "text-embedding-3-small"})

        assert known.json()["model"] == "vectors"
        assert assert_openai_error(first, 400, "no_embeddings").endswith("models that do: vectors")
        assert other.status_code == status


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input": [3, 5, 8]}, "send texts: token ids"),
        ({"input": [[3, 5], [8]]}, "send texts: token ids"),
        ({"input": 3}, "send texts: token ids"),
        ({"input": []}, "input: Input should not be empty"),
        ({"input": None}, "valid string"),
        ({"input": ["man", 3]}, "valid string"),
        ({"input": {"text": ["man"]}}, "valid string"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"task": 1}, "task"),
        ({"dimensions": 16}, "have 32 dimensions, and cannot have 16; leave that out"),
        ({"dimensions": -1}, "dimensions"),
        ({"output_dimension": 16}, "have 32 dimensions, and cannot have 16"),
        ({"output_dtype": "int8"}, "output_dtype: Input should be 'float'"),
        ({"embedding_type": "binary"}, "embedding_type"),
    ],
    ids=str,
)
async def test_what_cannot_be_embedded_is_refused(fields: dict[str, Any], said: str) -> None:
    """The error says why; asking for the model's own number of dimensions is no fault."""
    async with running_app(tiny_bi_encoder()) as running:
        assert (await ask(running, "man", dimensions=32)).status_code == 200
        assert said in assert_openai_error(await ask(running, "man", **fields), 422, "invalid_input")


async def test_clients_embed_below_the_base_url_by_which_they_rank() -> None:
    """Clients of Voyage and of infinity have one base URL for both, and read the same answers. infinity's client sends
    0 for the dimensions, and fails at a 422 without a list.
    """
    async with running_app(tiny_bi_encoder()) as running:
        answers = [
            [
                await running.client.post(f"{base}/embeddings", json={"input": text, "dimensions": 0})
                for text in ("man", [])
            ]
            for base in ("/v1", "/voyage/v1", "/infinity", "", "/together/v1")
        ]
        models = (await running.client.get("/infinity/models")).json()

    embedded, refused = zip(*([answer.json() for answer in pair] for pair in answers), strict=True)
    assert all(answer["data"] == embedded[0]["data"] for answer in embedded)
    message = refused[0]["message"]
    for answer in refused:
        listed = {"detail": [{"loc": ["body"], "msg": message, "type": "invalid_input"}], "error": message}
        assert answer == (refused[0] | listed if answer is refused[2] else refused[0])
    assert models["data"][0]["capabilities"] == ["rerank", "embed"]


async def test_a_request_is_bounded() -> None:
    """A request has limits on its texts, its waiting work, its answer and its memory, all of which is given back."""
    texts = [f"man {number} {'she ' * 20}" for number in range(40)]
    bounds = [
        ({"max_candidates": 39}, "too many texts: 40 (limit 39)"),
        ({"max_waiting_rows": 400}, "400 rows"),
        ({"max_answer_bytes": 10_000}, "ask for encoding_format base64"),
        ({"max_in_flight_bytes": 50_000}, "bytes of memory"),
    ]
    for bound, said in bounds:
        async with running_app(tiny_bi_encoder(), settings=Settings(device="cpu", **bound)) as running:
            assert said in assert_openai_error(await ask(running, texts), 413, "input_too_large")
            assert (await ask(running, "man")).status_code == 200
            assert (await running.scrape()).value("bandrank_memory_in_flight_bytes") == 0


async def test_a_client_that_hangs_up_has_nothing_embedded() -> None:
    """The client's work leaves the queue, and the next request is answered."""
    gate, scorer = Gate(), tiny_bi_encoder()
    encode = scorer.encode_candidates

    def held(tokens: Ragged) -> Ragged:
        gate(None)  # type: ignore[arg-type]  # the gate ignores its batch
        return encode(tokens)

    gate.let_through(1)  # the self-test of the start encodes candidates
    scorer.encode_candidates = held  # type: ignore[method-assign]
    async with running_app(scorer) as running:
        await asyncio.to_thread(gate.wait_for_batch)
        message: Message = {"type": "http.request", "body": b'{"input": "man"}', "more_body": False}
        held = partial(asyncio.to_thread, gate.wait_for_batch)
        await ask_and_hang_up(running.app, [message], hung_up=held, path="/v1/embeddings")
        gate.let_through(2)
        assert (await ask(running, "she")).status_code == 200
        seen = await running.scrape()

    assert seen.value("bandrank_http_requests_total", path="/v1/embeddings", status="499") == 1
    assert seen.value("bandrank_embedded_texts_total") == 1
    assert seen.value("bandrank_memory_in_flight_bytes") == 0
