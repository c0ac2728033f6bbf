"""OpenAI's SDK embeds texts through the running service, and its embeddings rank them as the service does."""

from collections.abc import Iterator

import httpx
import pytest
from clients.test_clients import DOCUMENTS, QUERY
from support.clients import Client, Outcome, RunningClient, running_client
from support.models import save_bi_encoder, save_cross_encoder
from support.server import RunningService, running_service

pytestmark = pytest.mark.clients

WAYS = ["sync", "floats", "async"]
CLIENTS = [Client("openai", group) for group in ("cohere-5", "cohere-7")]  # with versions 2 and 3
TOLERANCE = 2e-3  # of a cosine of 32 numbers, each rounded to float16 on one side and on the other


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service with a bi-encoder and a cross-encoder."""
    folder = tmp_path_factory.mktemp("models")
    save_bi_encoder(folder / "a-bi-encoder")
    save_cross_encoder(folder / "b-cross-encoder")
    with running_service(tmp_path_factory.mktemp("log"), arguments=["--models", str(folder)]) as running:
        yield running


@pytest.fixture(scope="module", params=CLIENTS, ids=str)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClient]:
    """The SDK in the version of one group of packages."""
    with running_client(request.param, tmp_path_factory.mktemp("openai")) as running:
        yield running


def ask(client: RunningClient, way: str, service: RunningService, model: str = "text-embedding-3-small") -> Outcome:
    question = {"key": "any", "model": model, "query": QUERY, "documents": DOCUMENTS, "top_n": None}
    outcome = client.ask(way, url=service.url, **question)
    assert not outcome.strays
    return outcome


@pytest.mark.parametrize("way", WAYS)
def test_dot_products_are_the_scores_of_the_service(way: str, client: RunningClient, service: RunningService) -> None:
    body = {"query": QUERY, "candidates": DOCUMENTS, "raw_scores": True}
    answer = httpx.post(f"{service.url}/rerank", json=body, timeout=60.0, trust_env=False).raise_for_status().json()
    outcome = ask(client, way, service)

    assert outcome.failure is None
    assert outcome.indices == [result["index"] for result in answer["results"]]
    expected = [result["relevance_score"] for result in answer["results"]]
    assert [score for _, score, _ in outcome.results] == pytest.approx(expected, abs=TOLERANCE)


def test_what_cannot_be_embedded_is_an_exception_with_our_message(
    client: RunningClient, service: RunningService
) -> None:
    """A model without a bi-encoder is a bad request; token ids are an unprocessable one."""
    no_bi_encoder = ask(client, "sync", service, "b-cross-encoder").failure
    token_ids = ask(client, "token ids", service).failure

    assert no_bi_encoder is not None
    assert no_bi_encoder.kinds[0] == "openai.BadRequestError"
    assert "none of its scorers is a bi-encoder; models that do: a-bi-encoder" in no_bi_encoder.message
    assert token_ids is not None
    assert token_ids.kinds[0] == "openai.UnprocessableEntityError"
    assert "send texts: token ids" in token_ids.message
