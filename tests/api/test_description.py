"""/openapi.json: its schemas allow exactly the bodies that are answered, and it lists all statuses of answers."""

import asyncio
import json
import threading
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from support.app import RunningApp, running_app
from support.dialects import DASHSCOPE
from support.scorers import encoded_lookup, lookup

from bandrank.api.embeddings import OTHER_PATHS, PATH
from bandrank.settings import Settings

WHO = {"query": "who"}
GOOD = WHO | {"candidates": ["man"]}
EXPLAINED = WHO | {"candidate": "man"}
BODIES: dict[tuple[str, str], list[Any]] = {
    ("POST", "/rerank"): [
        GOOD,
        WHO | {"documents": [{"id": "a", "text": "man"}]},
        WHO | {"candidates": [{"id": "a", "text": "man", "score": 1}, {"id": "", "score": None}]},
        WHO | {"candidates": [{"id": "a", "text": "man", "score": "1"}]},
        GOOD | {"first_stage_weight": 1},
        GOOD | {"first_stage_weight": 1.5},
        GOOD | {"first_stage_weight": None},
        GOOD | {"pooled": True},
        GOOD | {"pooled": None},
        GOOD | {"pooled": "yes"},
        WHO | {"candidates": None, "documents": ["man"]},
        GOOD | {"documents": None, "top_n": None, "model": None, "strategy": None, "budget_ms": None},
        GOOD | {"documents": []},
        GOOD | {"documents": ["man"]},
        WHO,
        WHO | {"candidates": None, "documents": None},
        WHO | {"candidates": []},
        WHO | {"documents": []},
        WHO | {"candidates": {}},
        WHO | {"candidates": [["man"]]},
        WHO | {"candidates": [{"text": "man"}]},
        WHO | {"candidates": [{"id": "a"}]},
        WHO | {"candidates": [{"id": "a", "text": None}]},
        WHO | {"candidates": [{"id": 1, "text": "man"}]},
        GOOD | {"query": ""},
        GOOD | {"query": " \n\t\x1c\u2003"},
        *(GOOD | {"query": chr(code)} for code in range(0x3001) if chr(code).isspace()),
        GOOD | {"query": "\ufeff"},
        GOOD | {"query": " .\n"},
        GOOD | {"query": "\x00"},
        GOOD | {"query": None},
        GOOD | {"top_n": 2.0},
        GOOD | {"top_n": 1e30},
        GOOD | {"top_n": 0},
        GOOD | {"top_n": -0.0},
        GOOD | {"top_n": -1},
        GOOD | {"top_n": 0.5},
        GOOD | {"top_n": "1"},
        GOOD | {"top_n": True},
        GOOD | {"budget_ms": 5e-324},
        GOOD | {"budget_ms": 0},
        GOOD | {"budget_ms": "1"},
        GOOD | {"raw_scores": 1},
        GOOD | {"return_documents": "true"},
        GOOD | {"strategy": "", "model": ""},
        GOOD | {"strategy": "best"},
        GOOD | {"strategy": 1},
        GOOD | {"model": "gpt"},
        GOOD | {"more": [{}]},
        [GOOD],
        None,
    ],
    ("POST", "/explain"): [
        EXPLAINED,
        EXPLAINED | {"model": None, "strategy": None, "more": 1},
        EXPLAINED | {"candidate": {"id": "a", "text": "man"}, "strategy": "cascade"},
        EXPLAINED | {"candidate": {"id": "a"}},
        EXPLAINED | {"candidate": ""},
        EXPLAINED | {"candidate": None},
        EXPLAINED | {"candidate": ["man"]},
        EXPLAINED | {"candidate": {"text": "man"}},
        EXPLAINED | {"query": " "},
        EXPLAINED | {"model": 1},
        EXPLAINED | {"strategy": "best"},
        WHO,
        [],
    ],
    ("POST", "/embed"): [
        {"inputs": "", "truncate": True, "prompt_name": None, "normalize": None},
        {"inputs": ["man", ""], "normalize": "false", "dimensions": 0},
        {"inputs": []},
        {"inputs": [1]},
        {"inputs": "man", "normalize": 1},
        {"input": "man"},
    ],
    ("POST", "/v1/embeddings"): [
        {"input": "", "model": "gpt", "user": 1},
        {"input": ["man", ""], "encoding_format": "base64", "dimensions": 1.0},
        {"input": "man", "encoding_format": None, "dimensions": None, "model": None, "input_type": "query"},
        {"input": "man", "task": "retrieval.query"},
        {"input": "man", "task": ["retrieval.query"]},
        {"input": {"text": "", "image": 1}},
        {"input": [{"text": "man"}, "she"]},
        {"input": {"text": ["man"]}},
        {"input": ["man", {"image": "man"}]},
        {"input": []},
        {"input": [1]},
        {"input": [[1]]},
        {"input": None},
        {"input": "man", "dimensions": "1"},
        {"input": "man", "dimensions": 0.5},
        {"input": "man", "dimensions": 0},
        {"input": "man", "encoding_format": "hex"},
        {"input": "man", "model": 1},
        {},
        [],
    ],
    ("PUT", "/candidates"): [
        {"candidates": []},
        {"candidates": [{"id": "a", "text": ""}]},
        {"candidates": [{"id": "\x00" * 512, "text": "\x00"}]},
        {"candidates": [{"id": "🐝" * 512, "text": "man", "more": 1}]},
        {"candidates": [{"id": "🐝" * 513, "text": "man"}]},
        {"candidates": [{"id": "", "text": "man"}]},
        {"candidates": [{"id": "a"}]},
        {"candidates": [{"id": "a", "text": None}]},
        {"candidates": [{"_id": "a", "title": "he", "text": "man"}]},
        {"candidates": [{"_id": "", "text": "man"}]},
        {"candidates": [{"id": "a", "title": None, "text": "man"}]},
        {"candidates": [{"id": "a", "title": 1, "text": "man"}]},
        {"candidates": [{"text": "man"}]},
        {"candidates": ["man"]},
        {"candidates": None},
        {},
        [],
    ],
    ("DELETE", "/candidates"): [{"ids": []}, {"ids": ["", "x" * 600, "a", "a"]}, {"ids": [1]}, {"ids": "a"}, {}, "a"],
}


async def description(running: RunningApp) -> dict[str, Any]:
    """The service's OpenAPI description."""
    document: dict[str, Any] = (await running.client.get("/openapi.json")).json()
    return document


@pytest.mark.parametrize(("method", "path"), BODIES)
async def test_a_body_is_allowed_if_it_is_answered(method: str, path: str) -> None:
    """A body that names what is not served is allowed too; any other body that is refused breaks its schema."""
    bodies = BODIES[method, path]
    async with running_app(lookup(), fast=encoded_lookup()) as running:
        document = await description(running)
        answers = [await running.client.request(method, path, json=body) for body in bodies]

    schema = document["paths"][path][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    is_allowed = Draft202012Validator(schema | {"components": document["components"]}).is_valid
    told = [(body, answer.status_code in {200, 400, 404}) for body, answer in zip(bodies, answers, strict=True)]
    assert told == [(body, is_allowed(body)) for body in bodies]
    no_bi_encoder, unknown = path in {"/v1/embeddings", "/embed"}, path in {"/rerank", "/explain"}
    assert {answer.status_code for answer in answers} == {400 if no_bi_encoder else 200, 422} | (
        {404} if unknown else set()
    )


async def test_the_description_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long, so it is made in another thread, for all who ask meanwhile and afterwards."""
    threads: list[int] = []
    async with running_app(lookup()) as running:
        make = running.app.openapi

        def openapi() -> dict[str, Any]:
            threads.append(threading.get_ident())
            return make()

        monkeypatch.setattr(running.app, "openapi", openapi)
        first, second = await asyncio.gather(description(running), description(running))
        assert first == second == await description(running) == make()

    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_every_endpoint_has_the_answers_of_its_connection() -> None:
    """Every endpoint lists the errors of its connection, and those of a service that fails or cannot answer now."""
    async with running_app(lookup()) as running:
        document = await description(running)

    def error_of(path: str, status: str) -> str:
        special = dict.fromkeys((PATH, *OTHER_PATHS, "/together/v1/rerank"), "OpenAIErrorBody")
        special |= {DASHSCOPE: "DashScopeErrorBody"}
        if status == "422":
            special |= dict.fromkeys(("/infinity/rerank", "/infinity/embeddings"), "FaultsBody")
        return f"#/components/schemas/{special.get(path, 'ErrorBody')}"

    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            assert responses.keys() >= {"400", "408", "431", "500", "503"}
            assert responses.keys() & {"200", "204"}
            assert responses["400"]["content"].keys() >= {"text/plain"}
            assert ("content" in responses["408"]) == ((method, path) == ("put", "/candidates"))  # a stream
            others = responses.keys() - {"200", "204", "400", "408", "431"}
            assert all(
                responses[status]["content"] == {"application/json": {"schema": {"$ref": error_of(path, status)}}}
                for status in others
            )
            assert ("429" in responses) == any("Retry-After" in each.get("headers", {}) for each in responses.values())
            assert ("X-Truncated-Tokens" in responses.get("200", {}).get("headers", {})) == (
                method == "post" and path != "/explain"
            )


async def test_paths_are_beside_the_description() -> None:
    """So they are where a proxy adds a prefix to all of them."""
    async with running_app(lookup()) as running:
        assert (await description(running))["servers"] == [{"url": "."}]


async def test_a_link_leads_to_an_endpoint_that_takes_its_body() -> None:
    """A registered candidate is ranked and deleted by the links of its registration."""
    candidates = [{"id": "a", "text": "man"}]
    async with running_app(lookup()) as running:
        document = await description(running)
        await running.client.put("/candidates", json={"candidates": candidates})
        links = document["paths"]["/candidates"]["put"]["responses"]["200"]["links"]
        answers = {}
        for name, link in links.items():
            *_, path, method = link["operationRef"].replace("~1", "\n").replace("/", " ").replace("\n", "/").split()
            assert method in document["paths"][path]
            body = json.loads(json.dumps(link["requestBody"]).replace("$request.body#/candidates/0/id", "a"))
            answers[name] = (await running.client.request(method.upper(), path, json=body)).json()

    assert [result["id"] for result in answers["rank"]["results"]] == ["a"]
    assert answers["delete"] == {"deleted": 1}


async def test_the_limits_are_those_of_the_service() -> None:
    limits = {"max_candidates": 123, "max_body_bytes": 4567, "max_answer_bytes": 8901, "max_line_bytes": 2345}
    async with running_app(lookup(), settings=Settings(device="cpu", **limits)) as running:
        text = (await description(running))["info"]["description"]

    assert all(f" {limit} " in text.replace("\n", " ") for limit in limits.values())


async def test_lines_are_described_as_text() -> None:
    """OpenAPI 3.1 has no schema for a sequence of JSON values; whatever the lines are, the answer is 200."""
    body = b'{"id": "a", "text": "man"}\n\nno json\n\xff\n7'
    async with running_app(lookup()) as running:
        content = (await description(running))["paths"]["/candidates"]["put"]["requestBody"]["content"]
        answers = {
            kind: await running.client.put("/candidates", content=body, headers={"content-type": kind})
            for kind in content.keys() - {"application/json"} | {"Application/X-JsonLines;charset=utf-8"}
        }

    kinds = {"application/x-ndjson", "application/jsonl", "application/x-jsonlines"}
    assert answers.keys() > kinds
    assert {content[kind]["schema"]["type"] for kind in kinds} == {"string"}
    assert {answer.status_code for answer in answers.values()} == {200}
    assert {answer.json()["num_errors"] for answer in answers.values()} == {3}


async def test_a_probe_does_not_wait_for_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schemas of all endpoints are built before the first request, because that takes as long as fifty probes."""
    written = []
    write = TypeAdapter.__init__

    def watched(*args: Any, **kwargs: Any) -> None:
        written.append(args)
        write(*args, **kwargs)

    async with running_app(lookup(man=1.5)) as running:
        monkeypatch.setattr(TypeAdapter, "__init__", watched)
        assert (await running.client.get("/healthz")).is_success

    assert written == []
