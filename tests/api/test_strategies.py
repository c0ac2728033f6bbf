"""Which stages answer POST /rerank, and what the answer says of them."""

from typing import Any

import pytest
from support.app import RunningApp, assert_error, running_app
from support.scorers import encoded_lookup, lookup

from bandrank.settings import Settings

WORDS = ["man", "she", "you", "he"]
SETTINGS = Settings(device="cpu", cascade_depth=2)


def both() -> Any:
    """An application with a fast scorer that prefers `she`, `you` and an accurate one that prefers `man`, `you`."""
    return running_app(lookup(man=9.0, you=5.0, she=-3.0), fast=encoded_lookup(she=4.0, you=3.0), settings=SETTINGS)


def order(answer: dict[str, Any]) -> list[int]:
    """The indices of the results in the request, best first."""
    return [result["index"] for result in answer["results"]]


async def ask(running: RunningApp, **fields: Any) -> dict[str, Any]:
    """The answer for WORDS; its status must be 200."""
    response = await running.rerank({"query": "who", "candidates": WORDS} | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_the_answer_reports_its_stages() -> None:
    """The answer has the candidates and cache hits of each stage, and the stage of each score."""
    async with both() as running:
        cold, warm = await ask(running, strategy="cascade"), await ask(running, strategy="cascade")

    for answer, hits in ((cold, 0), (warm, 4)):
        assert order(answer) == [2, 1, 0, 3]
        assert [result["stage"] for result in answer["results"]] == ["accurate", "accurate", "fast", "fast"]
        fast, accurate = answer["meta"]["stages"]
        assert (fast["stage"], fast["candidates"], fast["cache_hits"], fast["cache_misses"]) == (
            "fast",
            4,
            hits,
            4 - hits,
        )
        assert (accurate["stage"], accurate["candidates"], accurate["cache_hits"]) == ("accurate", 2, 0)
        assert (answer["meta"]["strategy"], answer["meta"]["degraded"]) == ("cascade", False)


@pytest.mark.parametrize("raw", [False, True])
async def test_scores_never_rise_from_stage_to_stage(*, raw: bool) -> None:
    """Clients sort by score, and the order must survive that."""
    async with both() as running:
        answer = await ask(running, strategy="cascade", raw_scores=raw)

    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)


async def test_cache_metrics_are_sums_over_requests() -> None:
    async with both() as running:
        for _ in range(3):
            await ask(running, strategy="fast")
        metrics = await running.scrape()

    assert metrics.value("bandrank_cache_candidates_total", outcome="miss") == 4
    assert metrics.value("bandrank_cache_candidates_total", outcome="hit") == 8
    assert metrics.value("bandrank_stages_total", stage="fast") == 3
    assert metrics.value("bandrank_stage_candidates_total", stage="fast") == 12


@pytest.mark.parametrize("texts", ["candidates", "documents"])
@pytest.mark.parametrize("where", ["field", "header"])
async def test_a_budget_comes_in_the_body_or_in_a_header(where: str, texts: str) -> None:
    """With too small a budget the answer is the fast stage's, and says that it is degraded, in two dialects."""
    async with both() as running:
        body = {"query": "who", texts: WORDS, "strategy": "cascade"}
        body |= {"budget_ms": 0.001} if where == "field" else {}
        headers = {"X-Budget-Ms": "0.001"} if where == "header" else {}
        answer = (await running.client.post("/rerank", json=body, headers=headers)).json()
        metrics = await running.scrape()

    assert answer["meta"]["degraded"] is True
    assert order(answer) == [1, 2, 0, 3]
    assert metrics.value("bandrank_degraded_total") == 1


@pytest.mark.parametrize("bad", ["soon", "0", "-5", "nan", "1_000", "+5", "1e999", "true", '"5"', "", "[5]"])
async def test_a_bad_budget_header_is_refused(bad: str) -> None:
    """It is refused beside a budget in the body too, though that one would count."""
    async with both() as running:
        for more in ({}, {"budget_ms": 1000}):
            body = {"query": "who", "candidates": WORDS} | more
            response = await running.client.post("/rerank", json=body, headers={"X-Budget-Ms": bad})
            assert "X-Budget-Ms" in assert_error(response, 422, "invalid_input")
