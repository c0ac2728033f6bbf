"""POST /rerank: what a client sends and gets back."""

import asyncio
import random
import re
from typing import Any

import httpx
import numpy as np
import pytest
from support.app import RunningApp, running_app
from support.scorers import lookup

from bandrank.api.dialects.dialect import sigmoid

WORDS = ["man", "she", "he", "you"]
SCORES = {"man": 1.5, "she": -2.0, "he": 4.0}  # other words score 0
IN_ORDER = [2, 0, 3, 1]


async def ask(body: dict[str, Any], *, name: str = "tiny") -> httpx.Response:
    """The answer of an application with known scores; its status must be 200."""
    async with running_app(lookup(**SCORES), name=name) as running:
        response = await running.rerank(body)
    assert response.status_code == 200, response.text
    return response


async def ask_for_results(**fields: Any) -> list[dict[str, Any]]:
    """The results for the candidates WORDS, or those in `fields`."""
    body = {"query": "who"} | ({} if "documents" in fields else {"candidates": WORDS}) | fields
    results: list[dict[str, Any]] = (await ask(body)).json()["results"]
    return results


async def test_the_answer_has_this_shape() -> None:
    answer = (await ask({"query": "who", "candidates": WORDS})).json()

    assert list(answer) == ["id", "model", "results", "usage", "meta"]
    assert re.fullmatch(r"rerank-[0-9a-f]{32}", answer["id"])
    assert answer["model"] == "tiny"
    assert [list(result) for result in answer["results"]] == [["index", "relevance_score", "stage"]] * 4
    assert answer["usage"] == {"prompt_tokens": 2 + 4 * 2, "total_tokens": 2 + 4 * 2}
    timings = answer["meta"].pop("timings_ms")
    (stage,) = answer["meta"].pop("stages")
    assert stage.pop("ms") >= 0
    assert stage == {"stage": "accurate", "candidates": 4, "cache_hits": 0, "cache_misses": 0}
    assert answer["meta"] == {
        "strategy": "accurate",
        "bounded": False,
        "degraded": False,
        "truncated_query_tokens": 0,
        "truncated_tokens": 0,
        "truncated_candidates": 0,
        "score": "sigmoid",
    }
    assert list(timings) == ["tokenize", "cache", "encode", "queue", "score", "total"]
    assert all(isinstance(value, float) and value >= 0 for value in timings.values())
    assert timings["tokenize"] + timings["queue"] + timings["score"] <= timings["total"] + 0.01  # rounded to 1 us


async def test_documents_make_it_the_request_of_another_service() -> None:
    """The scores are the same, and the results have no field that clients of that service do not know."""
    ours = [{key: result[key] for key in ("index", "relevance_score")} for result in await ask_for_results()]

    assert await ask_for_results(documents=WORDS) == ours
    assert await ask_for_results(documents=WORDS, candidates=None) == ours


async def test_ids_come_back() -> None:
    """Each candidate's id comes back with it, two may have the same, and a candidate without one has none."""
    candidates = [{"id": "a", "text": "she"}, "man", {"id": "", "text": "he"}, {"id": "a", "text": "you"}]
    results = await ask_for_results(candidates=candidates)

    assert [(result["index"], result.get("id")) for result in results] == [(2, ""), (1, None), (3, "a"), (0, "a")]
    assert ["id" in result for result in results] == [True, False, True, True]


@pytest.mark.parametrize(
    ("top_n", "expected"), [(None, 4), (0, 4), (1, 1), (3, 3), (4, 4), (5, 4), (10**30, 4), (2.0, 2), (1e30, 4)]
)
async def test_top_n_cuts_the_list(top_n: Any, expected: int) -> None:
    """null, 0 and a number above the number of candidates mean all."""
    results = await ask_for_results(top_n=top_n)

    assert [result["index"] for result in results] == IN_ORDER[:expected]


async def test_documents_are_returned_on_request() -> None:
    texts = ["  He said:\n\x00 ☃ \U0001f41d", {"id": "a", "text": ""}]
    results = await ask_for_results(candidates=texts, return_documents=True)

    assert [result["document"] for result in results] == [{"text": texts[0]}, {"text": ""}]


async def test_raw_scores_are_the_scorers_own() -> None:
    answer = (await ask({"query": "who", "candidates": WORDS, "raw_scores": True})).json()

    assert [result["relevance_score"] for result in answer["results"]] == [4.0, 1.5, 0.0, -2.0]
    assert answer["meta"]["score"] == "raw"


async def test_scores_are_the_sigmoid_in_float32() -> None:
    """Scores are right to two units in the last place of a float32, even where exp overflows."""
    raw = {"man": 1.5, "she": -2.0, "he": 87.0, "you": -87.0, "is": 1e30, "was": -1e30, "not": 1e-30}
    body = {"query": "who", "candidates": list(raw)}
    async with running_app(lookup(**raw)) as running:
        results = (await running.rerank(body)).json()["results"]

    scores = {list(raw)[result["index"]]: result["relevance_score"] for result in results}
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-np.array(list(raw.values()), np.float64)))
    got = np.array([scores[word] for word in raw])
    assert (got == got.astype(np.float32)).all()
    np.testing.assert_array_max_ulp(got.astype(np.float32), expected.astype(np.float32), maxulp=2)
    assert ((got >= 0) & (got <= 1)).all()


def test_the_sigmoid_keeps_the_order() -> None:
    """A larger raw score never has a smaller relevance score, from overflow to overflow and between neighbours."""
    neighbours = np.arange(np.float32(1).view(np.int32), np.float32(2).view(np.int32), 100)[:, None] + np.arange(2)
    far = np.random.default_rng(1).normal(0, 30, 2000)
    raw = np.sort(np.concatenate([far, -neighbours.astype(np.int32).view(np.float32).ravel()]).astype(np.float32))
    scores = sigmoid(raw)

    assert scores.dtype == np.float32
    assert (np.diff(scores) >= 0).all()


@pytest.mark.parametrize("raw_scores", [False, True])
async def test_every_number_with_a_fraction_is_written_as_one(raw_scores: bool) -> None:
    """The literals 0 and 1 never appear, because typed clients read them as integers."""
    scores = {"man": 1e30, "she": -1e30, "he": 1.0, "you": -16.0, "is": 1e-30, "was": -1.0}
    body = {"query": "who", "candidates": ["the", *scores], "raw_scores": raw_scores}
    async with running_app(lookup(**scores)) as running:
        text = (await running.rerank(body)).text

    literals = re.findall(r'"(?:relevance_score|tokenize|queue|score|total)":([-+.\deE]+)', text)
    assert len(literals) == 7 + 4
    assert all("." in literal or "e" in literal for literal in literals)


@pytest.mark.parametrize("model", [None, "", "org/tiny", "tiny", "default"])
async def test_a_model_may_be_named(model: str | None) -> None:
    """The full name, the short name and no name choose the model; the answer has the full name."""
    body = {"query": "who", "candidates": WORDS, "model": model}

    assert (await ask(body, name="org/tiny")).json()["model"] == "org/tiny"


async def test_a_folder_s_name_is_its_models_short_name() -> None:
    """A trailing slash makes no difference."""
    async with running_app(lookup(), name="/models/tiny/") as running:
        response = await running.rerank({"query": "who", "candidates": WORDS, "model": "tiny"})

    assert response.status_code == 200


async def test_fields_that_are_not_known_are_ignored() -> None:
    """Clients of other services send further fields."""
    more = {"max_tokens_per_doc": None, "return_len": "true", "kwargs": "{}", "rank_fields": ["text"], "top_k": 1}

    assert await ask_for_results(**more) == await ask_for_results()
    candidates = [{"id": word, "text": word, "metadata": {"page": 1}} for word in WORDS]
    assert [result["id"] for result in await ask_for_results(candidates=candidates)] == ["he", "man", "you", "she"]


async def test_of_a_key_that_comes_twice_the_last_one_counts() -> None:
    """The last one counts both in the request and in a candidate."""
    body = b"""{"query": "", "query": "who", "candidates": 7, "return_documents": true,
        "candidates": [{"id": 1, "text": "she", "id": "a", "text": "man"}]}"""
    async with running_app(lookup(**SCORES)) as running:
        (result,) = (await running.client.post("/rerank", content=body)).json()["results"]

    assert (result["id"], result["document"]) == ("a", {"text": "man"})


async def test_truncation_is_reported() -> None:
    """The answer has the numbers of cut pieces and cut candidates; the lookup scorer takes 63 pieces."""
    answer = (await ask({"query": "who " * 70, "candidates": ["he", "she " * 64, "man " * 100]})).json()

    assert answer["meta"]["truncated_query_tokens"] == 7
    assert answer["meta"]["truncated_tokens"] == 7 + 1 + 37
    assert answer["meta"]["truncated_candidates"] == 2
    assert answer["usage"]["total_tokens"] == 64 + 2 + 64 + 64


async def test_concurrent_requests_do_not_mix() -> None:
    async def one(running: RunningApp, number: int) -> None:
        words = random.Random(number).choices([*SCORES, "you"], k=1 + number)
        body = {
            "query": "who",
            "raw_scores": True,
            "candidates": [{"id": f"{number}-{index}", "text": word} for index, word in enumerate(words)],
        }
        results = (await running.rerank(body)).json()["results"]
        expected = sorted(range(len(words)), key=lambda index: -SCORES.get(words[index], 0.0))
        assert [(r["id"], r["relevance_score"]) for r in results] == [
            (f"{number}-{index}", SCORES.get(words[index], 0.0)) for index in expected
        ]

    async with running_app(lookup(**SCORES)) as running:
        await asyncio.gather(*(one(running, number) for number in range(30)))
