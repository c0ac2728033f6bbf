"""What holds in every dialect: the ranking of our own endpoint, its limits, its errors, and patience with clients."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.app import assert_error, running_app
from support.dialects import ONE_OF_EACH, SPEAKERS, Speaker
from support.keys import KEYS, key_table, write_keys
from support.models import random_text, tiny_cross_encoder
from support.scorers import lookup

from bandrank.api.dialects import DIALECTS, dialect_of
from bandrank.settings import Settings

pytestmark = pytest.mark.anyio

WORDS = ["man", "she", "he", "you", "man"]
SCORES = {"man": 1.5, "she": -200.0, "he": 100.0}  # as sigmoids 0 and 1; you: 0


async def test_every_path_has_a_speaker() -> None:
    """No dialect of a path goes untested, but for our own."""
    spoken = {(speaker.path, dialect_of(speaker.body("who", WORDS), at(speaker.path))) for speaker in SPEAKERS}

    assert len(spoken) == len(SPEAKERS) == sum(len(set(dialects)) for dialects in DIALECTS.values()) - 1


def at(path: str) -> Any:
    """The dialects of a path that may have a name in it."""
    templates = {path.replace("nvidia", "{model:path}").replace("ms-marco", "{model:path}"), path}
    return next(DIALECTS[template] for template in templates if template in DIALECTS)


async def test_the_ranking_is_our_own() -> None:
    """A real model's candidates come in the same order with the same scores, or each with its score."""
    rng = random.Random(1)
    texts = [random_text(rng, rng.randint(0, 40)) for _ in range(20)]
    async with running_app(tiny_cross_encoder()) as running:
        ours = {
            raw: (await running.rerank({"query": "who is it", "candidates": texts, "raw_scores": raw})).json()[
                "results"
            ]
            for raw in (False, True)
        }
        for speaker in SPEAKERS:
            answer = await running.client.post(speaker.path, json=speaker.body("who is it", texts))
            expected = [(result["index"], result["relevance_score"]) for result in ours[speaker.raw]]
            scores = speaker.scores(answer.json())
            assert [index for index, _ in scores] == [
                index for index, _ in (sorted(expected) if speaker.as_sent else expected)
            ]
            assert dict(scores) == pytest.approx(dict(expected), abs=1e-5), speaker


@pytest.mark.parametrize("speaker", ONE_OF_EACH, ids=str)
async def test_scores_are_floats(speaker: Speaker) -> None:
    """Also 0 and 1, which parsers of typed languages would take for integers."""
    async with running_app(lookup(**SCORES)) as running:
        answer = await running.client.post(speaker.path, json=speaker.body("who", WORDS))

    scores = [score for _, score in speaker.scores(answer.json())]
    assert {type(score) for score in scores} == {float}
    assert {100.0, -200.0} < {*scores} if speaker.raw else {0.0, 1.0} < {*scores}


@pytest.mark.parametrize("speaker", ONE_OF_EACH, ids=str)
async def test_a_client_may_send_nulls_and_what_nobody_knows(speaker: Speaker) -> None:
    """And no Content-Type."""
    body = speaker.body("who", WORDS)
    optional = {
        field.alias or name: None
        for name, field in dialect_of(body, at(speaker.path)).request.model_fields.items()
        if not field.is_required()
    }
    strays = {"return_len": None, "kwargs": "{}", "truncate": None, "user": {"a": [1]}, "priority": 0, "top": "x"}
    async with running_app(lookup(**SCORES)) as running:
        plain = await running.client.post(speaker.path, json=body)
        content = json.dumps(optional | strays | body).encode()
        stray = await running.client.post(speaker.path, content=content)

    assert "content-type" not in stray.request.headers
    assert speaker.scores(stray.json()) == speaker.scores(plain.json())


@pytest.mark.parametrize("speaker", ONE_OF_EACH, ids=str)
async def test_any_model_is_served_unless_unknown_ones_are_refused(speaker: Speaker) -> None:
    """The default one stands in, and an answer that names a model names that one."""
    body = speaker.body("who", WORDS)
    named = body if "ms-marco" in speaker.path else body | {"model": "BAAI/bge-reranker-base"}
    async with running_app(lookup(**SCORES)) as running:
        served = await running.client.post(speaker.path, json=named)
    async with running_app(lookup(**SCORES), settings=Settings(device="cpu", unknown_model="refuse")) as running:
        refused = await running.client.post(speaker.path, json=named)

    assert served.status_code == 200
    assert not isinstance(served.json(), dict) or served.json().get("model", "tiny") == "tiny"
    assert_error(refused, 404, "unknown_model")


@pytest.mark.parametrize("speaker", ONE_OF_EACH, ids=str)
async def test_bad_requests_get_the_flat_error(speaker: Speaker) -> None:
    """A query of nothing, no texts, texts that are none, too many of them, and no object at all."""
    body = speaker.body("who", WORDS)
    async with running_app(lookup(), settings=Settings(device="cpu", max_candidates=4)) as running:

        async def ask(content: Any) -> Any:
            return await running.client.post(speaker.path, json=content)

        assert_error(await ask(speaker.body(" ", WORDS)), 422, "invalid_input")
        for texts in ([], [7], {}, None):
            assert_error(await ask(body | {speaker.texts: texts}), 422, "invalid_input")
        for content in ([body], None, "who", {}):
            assert_error(await ask(content), 422, "invalid_input")
        message = assert_error(await ask(body), 413, "input_too_large")
        assert message == "too many candidates: 5 (limit 4)"


@pytest.mark.parametrize("speaker", ONE_OF_EACH, ids=str)
async def test_a_key_and_a_budget_count(speaker: Speaker, tmp_path: Path) -> None:
    """As at our own endpoint; and what was ranked is in the metrics."""
    settings = Settings(device="cpu", keys=write_keys(tmp_path / "keys.toml"))
    body, key = speaker.body("who", WORDS), {"Authorization": f"Bearer {KEYS['rank']}"}
    async with running_app(lookup(), settings=settings) as running:
        assert_error(await running.client.post(speaker.path, json=body), 401, "unauthorized")
        wrong = await running.client.post(speaker.path, json=body, headers=key | {"X-Budget-Ms": "soon"})
        right = await running.client.post(speaker.path, json=body, headers=key | {"X-Budget-Ms": "60000"})
        metrics = (await running.client.get("/metrics", headers={"X-API-Key": KEYS["admin"]})).text

    assert "X-Budget-Ms" in assert_error(wrong, 422, "invalid_input")
    assert right.status_code == 200
    assert f"bandrank_candidates_total {float(len(WORDS))}" in metrics
    assert 'bandrank_requests_total{status="200"} 1.0' in metrics


@pytest.mark.parametrize("speaker", ONE_OF_EACH, ids=str)
async def test_a_refusal_says_when_to_come_again(speaker: Speaker, tmp_path: Path) -> None:
    """In whole seconds, as every client that waits expects it."""
    settings = Settings(
        device="cpu", keys=write_keys(tmp_path / "keys.toml", rank=key_table("rank", requests_per_s=1e-9))
    )
    async with running_app(lookup(), settings=settings) as running:
        for _ in range(2):
            headers = {"X-API-Key": KEYS["rank"]}
            refused = await running.client.post(speaker.path, json=speaker.body("who", WORDS), headers=headers)

    assert_error(refused, 429, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
