"""The pooled form of lexical evidence, which a request asks for, or the settings."""

import math
from typing import Any

import numpy as np
import pytest
from support.app import RunningApp, assert_error, running_app
from support.models import tiny_cross_encoder
from support.precomputing import tiny_mix_encoder, with_words
from support.scorers import lookup
from support.serving import files_of

from bandrank.models.architectures import CrossEncoder, MixEncoder
from bandrank.models.layers.lexical import LexicalConfig
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank.settings import Settings

QUERY = "who is the man"
TEXTS = ["the man", "she is the one who is here", "he", "the man", "is it the woman or the man"]
BODY: dict[str, Any] = {"query": QUERY, "candidates": TEXTS, "raw_scores": True}


def mix_encoder() -> MixEncoder:
    """A scorer that keeps words beside its representations."""
    return with_words(tiny_mix_encoder(lexical=LexicalConfig(20.0, most_words=24)))


def cross_encoder() -> CrossEncoder:
    """A scorer that counts words in token ids."""
    return with_words(tiny_cross_encoder(max_tokens=64, lexical=LexicalConfig(20.0)))


def sigmoid(scores: list[float]) -> list[float]:
    return [1 / (1 + math.exp(-score)) for score in scores]


async def ranked(running: RunningApp, **fields: Any) -> tuple[list[float], dict[str, Any]]:
    """The scores in the order of the request, and what the answer says about itself."""
    response = await running.rerank(BODY | fields)
    assert response.status_code == 200, response.text
    answer = response.json()
    scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
    return [scores[index] for index in sorted(scores)], answer["meta"]


def written_out(scorer: MixEncoder | CrossEncoder, texts: list[str]) -> list[float]:
    """What the pooled form adds to scores: all distinct texts are the pool."""
    encoder = files_of(scorer).main.texts()
    query, _ = encoder.query(QUERY)
    distinct = list(dict.fromkeys(texts))
    ids, _ = encoder.candidates(encoder.pieces(distinct), query_tokens=len(query))
    assert scorer.lexical_evidence is not None
    change = scorer.lexical_evidence.pooled_change(np.asarray(query), Ragged.from_ids([ids]))
    return [float(change[distinct.index(text)]) for text in texts]


@pytest.mark.parametrize("make", [mix_encoder, cross_encoder])
async def test_a_request_asks_for_it(make: Any) -> None:
    """The answer says so; repeated texts tie and count once in the pool; without it nothing depends on the others."""
    async with running_app(make()) as running:
        plain, said = await ranked(running)
        pooled, said_pooled = await ranked(running, pooled=True)
        passages, _ = await ranked(running, pooled=True, return_passages=True)
        of_two, _ = await ranked(running, candidates=TEXTS[:2], pooled=True)
        two, _ = await ranked(running, candidates=TEXTS[:2], pooled=False)
        change, of_change = written_out(make(), TEXTS), written_out(make(), TEXTS[:2])

    assert said.get("pooled") is None
    assert said_pooled["pooled"] is True
    np.testing.assert_allclose(np.subtract(pooled, plain), change, atol=2e-2)
    np.testing.assert_allclose(np.subtract(of_two, two), of_change, atol=2e-2)
    assert np.abs(np.subtract(change[:2], of_change)).max() > 0.05
    assert pooled[0] == pooled[3]
    np.testing.assert_allclose(passages, pooled, atol=1e-4)
    np.testing.assert_allclose(two, plain[:2], atol=1e-4)


async def test_the_settings_hold_where_a_request_does_not_say() -> None:
    """So other dialects can have it, but not those whose scores must compare across requests."""
    async with running_app(mix_encoder(), settings=Settings(device="cpu", pooled=True)) as running:
        of_settings, _ = await ranked(running)
        asked, _ = await ranked(running, pooled=True)
        without, said = await ranked(running, pooled=False)
        cohere = await running.client.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS})
        pairs = [
            await running.client.post("/score", json={"text_1": QUERY, "text_2": texts}) for texts in (TEXTS, "he")
        ]

    assert of_settings == asked != without
    assert said.get("pooled") is None
    by_cohere = {result["index"]: result["relevance_score"] for result in cohere.json()["results"]}
    np.testing.assert_allclose([by_cohere[index] for index in range(5)], sigmoid(asked), atol=1e-5)
    together, alone = (response.json()["data"] for response in pairs)
    assert together[2]["score"] == pytest.approx(alone[0]["score"], abs=1e-5)


@pytest.mark.parametrize("fast", [mix_encoder, lambda: None])
async def test_a_stage_without_evidence_keeps_its_scores(fast: Any) -> None:
    """If no stage that ranked has any, the answer warns, and does not say that its scores are of the pooled form."""
    scorer: Scorer = lookup(man=1.0)
    async with running_app(scorer, fast=fast()) as running:
        plain, _ = await ranked(running, strategy="accurate")
        pooled, said = await ranked(running, strategy="accurate", pooled=True)

    assert pooled == plain
    assert said.get("pooled") is None
    assert said.get("warnings") == ["pooled changed nothing; no scorer that ranked has lexical evidence"]


async def test_it_is_true_or_false() -> None:
    async with running_app(lookup()) as running:
        response = await running.rerank(BODY | {"pooled": "yes"})

    assert "pooled" in assert_error(response, 422, "invalid_input")
