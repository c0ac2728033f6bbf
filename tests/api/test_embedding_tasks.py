"""The tasks for which a model with an encoder for each side of a search embeds texts."""

import pytest
from support.app import assert_openai_error, running_app
from support.models import tiny_bi_encoder

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("field", ["task", "input_type"])
async def test_two_encoders_serve_the_two_sides_of_a_search_alone(field: str) -> None:
    """jina-embeddings-v3 has adapters for other tasks, which are not loaded; those for documents do not stand in."""
    async with running_app(tiny_bi_encoder(separate_towers=True)) as running:
        found = [
            await running.client.post("/v1/embeddings", json={"input": "man", field: kind})
            for kind in ("retrieval.passage", "document", None)
        ]
        refused = [
            await running.client.post("/v1/embeddings", json={"input": "man", field: kind})
            for kind in ("text-matching", "classification", "separation", "clustering")
        ]

    assert all(answer.status_code == 200 for answer in found)
    said = [assert_openai_error(answer, 422, "invalid_input") for answer in refused]
    assert "encoders for queries and for documents, and none for 'text-matching'" in said[0]
