"""Random bodies on every path: those that the OpenAPI description allows are answered, and all others are refused."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.app import RunningApp, running_app
from support.dialects import SPEAKERS, Speaker, in_parts
from support.scorers import encoded_lookup, lookup

from bandrank.api.dialects import DIALECTS
from bandrank.settings import Settings

NAMES = sorted(
    {
        field.alias or name
        for dialects in DIALECTS.values()
        for dialect in dialects
        for name, field in dialect.request.model_fields.items()
    }
)
TEXTS = st.sampled_from(["who", "man", "", " ", "\x00", "true", "False", "default", "fast"])
SCALARS = st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([0.5, 2.0, 1e30, -0.0, 10**30]) | TEXTS
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"])}, optional={"text": TEXTS}), max_size=2
)
KEYS = ["text", "id", "query", "score", "title", "mode", "content", "instruction"]
OBJECTS = st.dictionaries(st.sampled_from(KEYS), SCALARS | PARTS, max_size=3)
VALUES = SCALARS | OBJECTS | st.lists(TEXTS | OBJECTS, max_size=4) | st.lists(SCALARS, max_size=3)
ADDED = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
# parts of messages about faults that a JSON schema cannot express
UNSAYABLE = ("cannot be paired", "none of the rank_fields", "is to be ranked once", "which they differ")


@dataclass(frozen=True)
class Described:
    """A service and its OpenAPI description."""

    running: RunningApp
    document: Mapping[str, Any]

    def is_allowed(self, path: str, body: Any) -> bool:
        """Whether the description allows a body."""
        content = self.operation(path)["requestBody"]["content"]
        return self._is_valid(content["application/json"]["schema"], body)

    def is_described(self, path: str, status: int, answer: Any) -> bool:
        """Whether an answer fits the schema that the description has for its status."""
        content = self.operation(path)["responses"][str(status)]["content"]
        return self._is_valid(content["application/json"]["schema"], answer)

    def operation(self, path: str) -> Any:
        """The description of POST at a path."""
        template = path.replace("nvidia", "{model}").replace("ms-marco", "{model}")
        return self.document["paths"][template if template in self.document["paths"] else path]["post"]

    def _is_valid(self, schema: Any, value: Any) -> bool:
        components = {"components": self.document["components"]}
        return Draft202012Validator(schema | components).is_valid(value)


@pytest.fixture
async def described() -> AsyncIterator[Described]:
    """A described service with two stages that takes at most three candidates."""
    limits = Settings(device="cpu", max_candidates=3)
    async with running_app(lookup(man=1.5), fast=encoded_lookup(man=1.0), settings=limits) as running:
        yield Described(running, (await running.client.get("/openapi.json")).json())


@given(speaker=st.sampled_from(SPEAKERS), added=ADDED, texts=st.lists(TEXTS, min_size=1, max_size=4))
@example(speaker=SPEAKERS[0], added={"rank_fields": ["title"], "documents": [{"title": 1}]}, texts=["man"])
@example(speaker=SPEAKERS[0], added={"query": in_parts("", "who"), "documents": in_parts("man")}, texts=["man"])
@example(speaker=SPEAKERS[0], added={"query": {"text": " "} | in_parts("who"), "documents": "man"}, texts=["man"])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_what_is_allowed_is_answered(
    described: Described, speaker: Speaker, added: dict[str, Any], texts: list[str]
) -> None:
    """A body that the description does not allow is refused; answers and refusals alike fit the description."""
    body = speaker.body("who", texts) | added
    response = await described.running.client.post(speaker.path, json=body)
    status, answer = response.status_code, response.json()

    assert described.is_described(speaker.path, status, answer), (status, answer)
    assert status in {200, 404, 413, 422}
    if status != 413 and not (status == 422 and any(each in answer["message"] for each in UNSAYABLE)):
        assert described.is_allowed(speaker.path, body) == (status != 422), (status, answer)
