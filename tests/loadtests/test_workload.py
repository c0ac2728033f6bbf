"""The load test sends valid requests and detects wrong answers."""

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def load_workload() -> ModuleType:
    """Loads the module beside the locust file, whose folder holds scripts and is no package."""
    path = Path(__file__).parents[2] / "loadtests" / "workload.py"
    spec = importlib.util.spec_from_file_location("loadtests_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


workload = load_workload()


def requests(num: int, seed: int = 1) -> list[dict[str, Any]]:
    """Returns the first requests of a user."""
    source = workload.Workload(seed=1, num_documents=400, candidate_counts=(1, 10, 100), exponent=1.0)
    rng = random.Random(seed)
    return [source.request(rng) for _ in range(num)]


def right_answer(request: dict[str, Any]) -> dict[str, Any]:
    """Returns an answer that ranks the candidates backwards."""
    candidates = workload.candidates_of(request)
    order = list(reversed(range(len(candidates))))[: request.get("top_n", len(candidates))]
    results = []
    for index in order:
        result: dict[str, Any] = {"index": index, "relevance_score": index / 1000}
        if isinstance(candidates[index], dict):
            result["id"] = candidates[index]["id"]
        if request.get("return_documents"):
            text = candidates[index]["text"] if isinstance(candidates[index], dict) else candidates[index]
            result["document"] = {"text": text}
        results.append(result)
    return {"results": results}


def test_every_request_is_valid() -> None:
    """A request has a question and as many distinct, non-empty candidates as one of the counts asks for."""
    for request in requests(300):
        texts = [c["text"] if isinstance(c, dict) else c for c in workload.candidates_of(request)]
        ids = [c["id"] for c in workload.candidates_of(request) if isinstance(c, dict)]

        assert request["query"]
        assert len(workload.candidates_of(request)) in {1, 10, 100}
        assert all(texts)
        assert len(set(ids)) == len(ids)
        assert request.get("top_n", 1) >= 1


def test_two_runs_send_the_same_requests() -> None:
    assert requests(20) == requests(20)
    assert requests(20) != requests(20, seed=2)


def test_popular_texts_come_more_often() -> None:
    """Of 1000 indices the first is drawn 1 / H(1000) = 0.1336 of the time, the hundredth a hundredth of that."""
    zipf, rng = workload.Zipf(1000, 1.0), random.Random(0)
    draws = [zipf.draw(rng) for _ in range(20_000)]

    assert draws.count(0) / len(draws) == pytest.approx(0.1336, abs=0.01)  # four standard deviations
    assert draws.count(99) / len(draws) == pytest.approx(0.0013, abs=0.001)
    assert max(draws) < 1000


def test_a_right_answer_passes() -> None:
    for request in requests(300):
        workload.check_answer(request, right_answer(request))


REQUEST = {"query": "q", "candidates": [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}], "return_documents": True}
A = {"index": 0, "id": "a", "relevance_score": 0.9, "document": {"text": "x"}}
B = {"index": 1, "id": "b", "relevance_score": 0.4, "document": {"text": "y"}}


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([A], "expected 2 results"),
        ([A, A], "ranked twice"),
        ([A, {**B, "index": 2}], "outside"),
        ([A, {**B, "index": True}], "outside"),
        ([A, {**B, "relevance_score": float("nan")}], "finite"),
        ([A, {**B, "relevance_score": None}], "finite"),
        ([B, A], "descending"),
        ([A, {**B, "id": "a"}], "id"),
        ([A, {**B, "document": {"text": "x"}}], "text"),
        ([A, {**B, "document": None}], "text"),
        (None, "no list"),
    ],
)
def test_wrong_answers_are_detected(results: list[dict[str, Any]] | None, message: str) -> None:
    """Each way in which a ranking can be wrong is named."""
    with pytest.raises(workload.WrongAnswerError, match=message):
        workload.check_answer(REQUEST, {"results": results})
