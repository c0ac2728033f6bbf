"""What the demo sends, what it accepts as an answer, and what it prints."""

import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from demo import Outcome, clip, parse_options, report, rerank, service, side_by_side
from demo_collection import Collection, DemoError

PASSAGES = {"p1": "green tea", "p2": "black tea", "p3": "coffee"}


def client_of(status: int, **answer: Any) -> httpx.Client:
    """Returns a client that gets this answer to every request."""
    return httpx.Client(base_url="http://x", transport=httpx.MockTransport(lambda _: httpx.Response(status, **answer)))


def results(*pairs: tuple[int, str]) -> dict[str, object]:
    """Returns the body of an answer with these indices and ids, best first."""
    return {"results": [{"index": index, "id": name, "relevance_score": 0.5} for index, name in pairs]}


def test_rerank_gives_the_ids_in_the_order_of_the_answer() -> None:
    client = client_of(200, json=results((2, "p3"), (0, "p1"), (1, "p2")))

    assert rerank(client, "coffee?", ["p1", "p2", "p3"], PASSAGES) == ["p3", "p1", "p2"]


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, {"json": results((2, "p3"), (0, "p1"))}),
        (200, {"json": results((2, "p3"), (0, "p1"), (0, "p1"))}),
        (200, {"json": results((2, "p3"), (0, "p2"), (1, "p1"))}),
        (200, {"json": results((2, "p3"), (0, "p1"), (1, "p2"), (3, "p4"))}),
        (200, {"json": {"results": [{"index": 0}]}}),
        (200, {"json": ["no", "object"]}),
        (200, {"text": "no json"}),
        (429, {"json": {"message": "overloaded"}}),
        (500, {"text": "broken"}),
    ],
)
def test_an_answer_that_is_no_permutation_ends_the_demo(status: int, answer: dict[str, Any]) -> None:
    """Lost, doubled, swapped or invented candidates, other JSON and other statuses are failures, not rankings."""
    with pytest.raises(DemoError, match=f"answered {status}"):
        rerank(client_of(status, **answer), "coffee?", ["p1", "p2", "p3"], PASSAGES)


def test_a_service_that_ends_early_is_reported_with_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting ends when the process does, and the message holds its status and its output."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no such model\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    with pytest.raises(RuntimeError, match=r"(?s)exit status 1.*no such model"), service(parse_options([])):
        pass


def test_the_lists_show_what_is_relevant_and_how_far_it_moved() -> None:
    """* marks relevance, ^ and v give the ranks moved, and no line is wider than the terminal."""
    lines = side_by_side(["p1", "p2", "p3"], ["p3", "p2", "p1"], PASSAGES, {"p3"}, 80)

    assert [re.split(r" {2,}", line.strip()) for line in lines[1:]] == [
        ["1", "green tea", "^ 2", "* coffee"],
        ["2", "black tea", "=", "black tea"],
        ["3", "* coffee", "v 2", "green tea"],
    ]
    long = {name: text * 100 for name, text in PASSAGES.items()}
    assert all(len(line) <= 80 for line in side_by_side(["p1", "p2", "p3"], ["p3", "p2", "p1"], long, {"p3"}, 80))


def test_clipped_text_stays_on_its_line() -> None:
    """Line breaks and terminal escapes of a passage never reach the terminal."""
    assert clip("a\nb\x1b[31mc", 20) == "a b [31mc"
    assert clip("abcdefgh", 6) == "abcd.."


def test_the_report_averages_over_all_questions(capsys: pytest.CaptureFixture[str]) -> None:
    """A question without candidates counts as 0 before and after, and adds no latency; losses are printed as losses."""
    collection = Collection("c", "test", PASSAGES, {"q1": "", "q2": ""}, {"q1": {"p1": 1}, "q2": {"p2": 1}})
    outcomes = [
        Outcome("q1", ["p1", "p2"], ["p2", "p1"], ndcg_before=1.0, ndcg_after=0.5, latency_s=0.02),
        Outcome("q2", [], [], ndcg_before=0.0, ndcg_after=0.0, latency_s=0.0),
    ]

    report(outcomes, collection)

    printed = capsys.readouterr().out
    assert "over 2 questions: BM25 0.5000 -> bandrank 0.2500 (-0.2500)" in printed
    assert "0 better, 1 worse, 1 unchanged; BM25 missed the answer of 1" in printed
    assert "2.0 candidates on average" in printed
    assert "p50 20.0 ms   p95 20.0 ms   p99 20.0 ms" in printed
