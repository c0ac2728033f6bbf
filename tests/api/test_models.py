"""Several models behind one endpoint: listed, chosen by the request, refused by name."""

from contextlib import AbstractAsyncContextManager

import httpx
import pytest
from support.app import assert_error, client_of, running_app
from support.scorers import encoded_lookup, lookup
from support.serving import files_of

from bandrank.settings import Settings

BODY = {"query": "who", "candidates": ["man", "she"], "raw_scores": True}


def two_models() -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """A client of a service with the model "men", which prefers men, and the cascade "women"."""
    files = [files_of(lookup(man=1.0), name="men"), files_of(lookup(she=2.0), fast=encoded_lookup(), name="women")]
    return client_of(Settings(device="cpu"), files)


@pytest.mark.parametrize(
    ("model", "expected", "best"),
    [(None, "men", 0), ("default", "men", 0), ("men", "men", 0), ("women", "women", 1), ("women-fast", "women", 0)],
)
async def test_a_request_chooses_its_model(model: str | None, expected: str, best: int) -> None:
    """The first model is the default, and the answer names the model that ranked."""
    async with two_models() as client:
        strategy = "fast" if model == "women-fast" else "auto"
        answer = (await client.post("/rerank", json=BODY | {"model": model, "strategy": strategy})).json()

    assert (answer["model"], answer["results"][0]["index"]) == (expected, best)


async def test_an_unknown_model_is_refused_with_the_served_names() -> None:
    async with two_models() as client:
        response = await client.post("/rerank", json=BODY | {"model": "children"})

    message = assert_error(response, 404, "unknown_model")
    assert message == "model 'children' is not served here; models: men, women"


async def test_the_models_are_listed() -> None:
    """The list has OpenAI's form, the default model first, each with its strategies."""
    async with two_models() as client:
        listed = (await client.get("/v1/models")).json()

    assert listed["object"] == "list"
    assert [(model["id"], model["object"], model["owned_by"]) for model in listed["data"]] == [
        ("men", "model", "bandrank"),
        ("women", "model", "bandrank"),
    ]
    assert [model["strategies"] for model in listed["data"]] == [
        ["auto", "accurate"],
        ["auto", "fast", "accurate", "cascade"],
    ]
    assert all(isinstance(model["created"], int) for model in listed["data"])


@pytest.mark.parametrize(("name", "expected"), [("women", "women"), ("default", "men"), ("bge/reranker", "men")])
async def test_a_model_is_described(name: str, expected: str) -> None:
    """The model is the one that a foreign dialect's request would get; Xinference's clients read its `model_type`."""
    async with two_models() as client:
        described = (await client.get(f"/v1/models/{name}")).json()

    assert (described["id"], described["model_type"]) == (expected, "rerank")


async def test_a_model_that_is_not_served_has_no_description_where_it_is_refused() -> None:
    async with running_app(lookup(), settings=Settings(device="cpu", unknown_model="refuse")) as running:
        response = await running.client.get("/v1/models/women")

    assert_error(response, 404, "unknown_model")
