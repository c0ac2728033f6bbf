"""First-stage scores that come with candidates, and are mixed in by a weight of the request or of the model."""

from dataclasses import replace
from typing import Any

import pytest
from support.app import RunningApp, assert_error, running_app
from support.scorers import lookup
from support.serving import files_of

from bandrank.serving import assemble
from bandrank.settings import Settings

RAW = {"man": 3.0, "she": 1.0, "he": -1.0}
FIRST = {"man": 10, "she": 30.0, "he": 20.0}
BODY = {
    "query": "who",
    "candidates": [{"id": word, "text": word, "score": FIRST[word]} for word in RAW],
    "raw_scores": True,
}


async def ranked(running: RunningApp, **fields: Any) -> tuple[dict[str, float], Any]:
    """Ids with their scores, best first, and the weight that the answer names."""
    response = await running.rerank(BODY | fields)
    assert response.status_code == 200, response.text
    answer = response.json()
    scores = {result["id"]: result["relevance_score"] for result in answer["results"]}
    return scores, answer["meta"].get("first_stage_weight")


async def test_the_weight_of_a_request_mixes_scores_in() -> None:
    """The answer names the weight; without one, or with a weight of 0, nothing changes."""
    async with running_app(lookup(**RAW)) as running:
        plain = [await ranked(running), await ranked(running, first_stage_weight=0)]
        quarter = await ranked(running, first_stage_weight=0.25)
        all_of_it = await ranked(running, first_stage_weight=1, top_n=2)

    assert plain == [(RAW, None)] * 2
    assert [*RAW] == [*plain[0][0]]
    # 0.75 * 3 + 0.25 * -1;  0.75 * 1 + 0.25 * 3;  0.75 * -1 + 0.25 * 1
    assert quarter == ({"man": 2.0, "she": 1.5, "he": -0.5}, 0.25)
    assert ([*all_of_it[0]], all_of_it[1]) == (["she", "he"], 1.0)


async def test_the_weight_of_the_settings_holds_where_a_request_does_not_say() -> None:
    """The setting's weight applies only to candidates that have scores."""
    files = files_of(lookup(**RAW))
    assert files.first_stage_weight == 0
    settings = Settings(device="cpu", first_stage_weight=0.25)
    async with running_app(lookup(**RAW), settings=settings) as running:
        of_settings = await ranked(running)
        of_request = await ranked(running, first_stage_weight=0)
        no_scores = await ranked(running, candidates=[{"id": word, "text": word} for word in RAW])
        texts = await running.rerank({"query": "who", "candidates": [*RAW]})

    assert of_settings == ({"man": 2.0, "she": 1.5, "he": -0.5}, 0.25)
    assert of_request == no_scores == (RAW, None)
    assert "first_stage_weight" not in texts.json()["meta"]


async def test_a_candidate_without_a_score_counts_as_the_lowest() -> None:
    """A candidate without a score was not among those that the first stage found."""
    candidates = [{"id": "he", "text": "he", "score": 20}, "man", {"id": "she", "text": "she", "score": 30}]
    async with running_app(lookup(**RAW)) as running:
        response = await running.rerank({"query": "who", "candidates": candidates, "first_stage_weight": 1})

    assert [result["index"] for result in response.json()["results"]] == [2, 1, 0]  # man ties with he, and is better


async def test_a_candidate_that_is_not_ranked_has_no_say() -> None:
    """The first-stage score of an unknown id must not move those of the others."""
    candidates = [*BODY["candidates"], {"id": "nobody", "score": 1e9}]
    async with running_app(lookup(**RAW)) as running:
        with_it = await ranked(running, candidates=candidates, first_stage_weight=0.25)
        without = await ranked(running, first_stage_weight=0.25)
        only_its = [{"id": word, "text": word} for word in RAW] + candidates[-1:]
        alone = await ranked(running, candidates=only_its, first_stage_weight=0.25)

    assert with_it == without
    assert alone == (RAW, None)


@pytest.mark.parametrize("score", ["NaN", "Infinity", "1e999", '"1"', "true", "1" + "0" * 400])
async def test_a_score_that_is_no_number_is_refused(score: str) -> None:
    body = f'{{"query": "who", "candidates": ["man", {{"id": "a", "text": "he", "score": {score}}}]}}'
    async with running_app(lookup(**RAW)) as running:
        response = await running.client.post("/rerank", content=body.encode())

    assert "candidates.1.score: " in assert_error(response, 422, "invalid_input")


@pytest.mark.parametrize("weight", [-0.1, 1.1, "1", True, [1]])
async def test_a_weight_that_is_no_share_is_refused(weight: Any) -> None:
    async with running_app(lookup(**RAW)) as running:
        response = await running.rerank(BODY | {"first_stage_weight": weight})

    assert "first_stage_weight" in assert_error(response, 422, "invalid_input")


async def test_a_further_name_finds_its_model() -> None:
    """An alias is looked up before the default model stands in for an unknown name."""
    one = files_of(lookup(**RAW), name="one")
    two = replace(files_of(lookup(**RAW), name="two"), aliases=("rerank-v3.5",))
    models = assemble([one, two], Settings(device="cpu")).models
    try:
        assert models.find("rerank-v3.5").name == "two"
        assert models.find("rerank-v4", or_default=True).name == "one"
    finally:
        await models.close()
