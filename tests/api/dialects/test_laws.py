"""What holds in every dialect: the ranking, limits and errors of bandrank's own, and tolerance of stray fields."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.app import RunningApp, assert_error, running_app
from support.dialects import ONE_OF_EACH, SPEAKERS, Speaker, assert_invalid
from support.keys import KEYS, key_table, write_keys
from support.models import random_text, tiny_cross_encoder
from support.scorers import lookup

from bandrank.api.dialects import DIALECTS, dialect_of
from bandrank.settings import Settings

WORDS = ["man", "she", "he", "you", "man"]
SCORES = {"man": 1.5, "she": -200.0, "he": 100.0}  # "she" and "he" have the sigmoids 0 and 1; "you" scores 0


async def post(running: RunningApp, speaker: Speaker, body: Any, **headers: str) -> Any:
    return await running.client.post(speaker.path, json=body, headers=headers)


def dialects_at(path: str) -> Any:
    """The dialects of a path, which may have a model's name in it."""
    templates = {path.replace("nvidia", "{model:path}").replace("ms-marco", "{model:path}"), path}
    return next(DIALECTS[template] for template in templates if template in DIALECTS)


def test_every_path_has_a_speaker() -> None:
    """SPEAKERS covers every dialect of every path, except for bandrank's own."""
    spoken = {(speaker.path, dialect_of(speaker.body("who", WORDS), dialects_at(speaker.path))) for speaker in SPEAKERS}

    assert len(spoken) == len(SPEAKERS) == sum(len(set(dialects)) for dialects in DIALECTS.values()) - 1


async def test_the_ranking_is_our_own() -> None:
    """Every dialect gives a real model's candidates the scores of `/rerank`, in its order or in that of the request."""
    rng = random.Random(1)
    texts = [random_text(rng, rng.randint(0, 40)) for _ in range(20)]
    async with running_app(tiny_cross_encoder()) as running:
        ours = {}
        for raw in (False, True):
            answer = await running.rerank({"query": "who is it", "candidates": texts, "raw_scores": raw})
            ours[raw] = [(result["index"], result["relevance_score"]) for result in answer.json()["results"]]
        theirs = [(await post(running, speaker, speaker.body("who is it", texts))).json() for speaker in SPEAKERS]

    for speaker, answer in zip(SPEAKERS, theirs, strict=True):
        expected = sorted(ours[speaker.raw]) if speaker.as_sent else ours[speaker.raw]
        scores = speaker.scores(answer)
        assert [index for index, _ in scores] == [index for index, _ in expected], speaker
        assert dict(scores) == pytest.approx(dict(expected), abs=1e-5), speaker


async def test_scores_are_floats() -> None:
    """Scores of 0 and 1 are written as floats too, because parsers of typed languages would take them for integers."""
    async with running_app(lookup(**SCORES)) as running:
        for speaker in ONE_OF_EACH:
            answer = await post(running, speaker, speaker.body("who", WORDS))
            scores = [score for _, score in speaker.scores(answer.json())]
            assert {type(score) for score in scores} == {float}, speaker
            assert {*scores} > ({100.0, -200.0} if speaker.raw else {0.0, 1.0}), speaker


async def test_a_client_may_send_nulls_and_what_nobody_knows() -> None:
    """Null options, unknown fields and a missing Content-Type do not change the scores."""
    strays = {"return_len": None, "kwargs": "{}", "truncate": None, "user": {"a": [1]}, "priority": 0, "top": "x"}
    async with running_app(lookup(**SCORES)) as running:
        for speaker in SPEAKERS:
            body = speaker.body("who", WORDS)
            fields = dialect_of(body, dialects_at(speaker.path)).request.model_fields
            optional = {field.alias or name: None for name, field in fields.items() if not field.is_required()}
            plain = await post(running, speaker, body)
            stray = await running.client.post(speaker.path, content=json.dumps(optional | strays | body).encode())
            assert "content-type" not in stray.request.headers
            assert speaker.scores(stray.json()) == speaker.scores(plain.json()), speaker


@pytest.mark.parametrize("name", ["", "default", "default/not-specified"])
async def test_a_request_may_name_no_model(name: str) -> None:
    """A request without a model's name is answered even where unknown models are refused."""
    async with running_app(lookup(**SCORES), settings=Settings(device="cpu", unknown_model="refuse")) as running:
        for speaker in ONE_OF_EACH:
            if "ms-marco" not in speaker.path:  # whose path names a model
                answer = await post(running, speaker, speaker.body("who", WORDS) | {"model": name})
                assert answer.status_code == 200, speaker


@pytest.mark.parametrize("unknown", ["default", "refuse"])
async def test_any_model_is_served_unless_unknown_ones_are_refused(unknown: Any) -> None:
    """The default model stands in for an unknown one, and the answer names it; bandrank's own dialect refuses."""
    async with running_app(lookup(**SCORES), settings=Settings(device="cpu", unknown_model=unknown)) as running:
        for speaker in ONE_OF_EACH:
            body = speaker.body("who", WORDS)
            named = body if "ms-marco" in speaker.path else body | {"model": "BAAI/bge-reranker-base"}
            answer = await post(running, speaker, named)
            if unknown == "refuse":
                assert_error(answer, 404, "unknown_model")
            else:
                assert answer.status_code == 200, speaker
                assert not isinstance(answer.json(), dict) or answer.json().get("model", "tiny") == "tiny"
        ours = await running.rerank({"query": "who", "candidates": WORDS, "model": "BAAI/bge-reranker-base"})

    assert_error(ours, 404, "unknown_model")


async def test_bad_requests_get_the_flat_error() -> None:
    """Refused are an empty query, missing or malformed texts, too many texts, and a body that is not an object."""
    async with running_app(lookup(), settings=Settings(device="cpu", max_candidates=4)) as running:
        for speaker in ONE_OF_EACH:
            body = speaker.body("who", WORDS)
            no_texts = [speaker.with_texts(body, texts) for texts in ([], [7], {}, None)]
            for wrong in (speaker.body(" ", WORDS[:4]), *no_texts, [body], None, "who", {}):
                assert_invalid(await post(running, speaker, wrong))
            message = assert_error(await post(running, speaker, body), 413, "input_too_large")
            assert message == "too many candidates: 5 (limit 4); send fewer, or raise the setting max_candidates"


async def test_keys_and_budgets_and_metrics_count(tmp_path: Path) -> None:
    """Keys, `X-Budget-Ms` and the metrics work in every dialect as they do for bandrank's own requests."""
    settings = Settings(device="cpu", keys=write_keys(tmp_path / "keys.toml"))
    key = {"Authorization": f"Bearer {KEYS['rank']}"}
    async with running_app(lookup(), settings=settings) as running:
        for speaker in SPEAKERS:
            body = speaker.body("who", WORDS)
            assert_error(await post(running, speaker, body), 401, "unauthorized")
            wrong = await post(running, speaker, body, **key, **{"X-Budget-Ms": "soon"})
            assert "X-Budget-Ms" in assert_invalid(wrong)
            right = await post(running, speaker, body, **key, **{"X-Budget-Ms": "60000"})
            assert right.status_code == 200
        metrics = (await running.client.get("/metrics", headers={"X-API-Key": KEYS["admin"]})).text

    assert f"bandrank_candidates_total {float(len(WORDS) * len(SPEAKERS))}" in metrics
    for status in (200, 401, 422):
        assert f'bandrank_requests_total{{status="{status}"}} {float(len(SPEAKERS))}' in metrics


async def test_a_refusal_says_when_to_come_again(tmp_path: Path) -> None:
    """Clients that wait expect `Retry-After` in whole seconds."""
    rate = key_table("rank", requests_per_s=1e-9)
    settings = Settings(device="cpu", keys=write_keys(tmp_path / "keys.toml", rank=rate))
    async with running_app(lookup(), settings=settings) as running:
        await post(running, SPEAKERS[0], {}, **{"X-API-Key": KEYS["rank"]})
        for speaker in ONE_OF_EACH:
            refused = await post(running, speaker, speaker.body("who", WORDS), **{"X-API-Key": KEYS["rank"]})
            assert_error(refused, 429, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
