"""POST /explain: what a client sends and gets back."""

import asyncio
import json
import re
from functools import partial
from typing import Any

import httpx
import pytest
from starlette.types import Message
from support.app import RunningApp, ask_and_hang_up, assert_error, running_app
from support.models import tiny_bi_encoder, tiny_cross_encoder
from support.scorers import Gate, LookupScorer, WatchedScorer, encoded_lookup, lookup

from bandrank.settings import Settings

QUERY = "who is the man"
TEXT = "  The 🐝 man! She\u2003said über.\n"
TOLERANCE = 1e-5  # of float32 scores; a score must not depend on the other candidates


async def ask(running: RunningApp, **fields: Any) -> httpx.Response:
    """POST /explain for QUERY and TEXT, unless `fields` says otherwise."""
    return await running.client.post("/explain", json={"query": QUERY, "candidate": TEXT} | fields)


async def rank(running: RunningApp, text: str, **fields: Any) -> Any:
    """The score that /rerank gives to a text as the only candidate."""
    answer = await running.rerank({"query": QUERY, "candidates": [text]} | fields)
    [result] = answer.json()["results"]
    return result["relevance_score"]


async def test_the_answer_has_this_shape() -> None:
    """The answer has exactly the documented fields, without those that are null."""
    async with running_app(lookup(man=3.0), fast=encoded_lookup(man=2.0)) as running:
        answer = (await ask(running, candidate="man she", strategy="cascade")).json()

    assert list(answer) == ["id", "model", "relevance_score", "raw_score", "stages", "words", "usage", "meta"]
    assert re.fullmatch(r"explain-[0-9a-f]{32}", answer["id"])
    assert (answer["model"], answer["raw_score"]) == ("tiny", 3.0)
    fast, accurate = answer["stages"]
    assert fast.pop("cached") is False
    assert list(fast) == list(accurate) == ["stage", "raw_score", "weight", "query", "candidate"]
    assert [(stage["stage"], stage["raw_score"], stage["weight"]) for stage in (fast, accurate)] == [
        ("fast", 2.0, 0.0),
        ("accurate", 3.0, 1.0),
    ]
    tokens = accurate["candidate"].pop("tokens")
    assert accurate["candidate"] == {}
    assert [(token["piece"], token.get("start"), token.get("end")) for token in tokens] == [
        ("man", 0, 3),
        ("she", 4, 7),
        ("[PAD]", None, None),
    ]
    assert answer["words"] == {
        "method": "occlusion",
        "spans": [
            {"start": 0, "end": 3, "text": "man", "contribution": 3.0, "stages": {"accurate": 3.0}},
            {"start": 4, "end": 7, "text": "she", "contribution": 0.0, "stages": {"accurate": 0.0}},
        ],
    }
    assert answer["usage"]["total_tokens"] == 2 * (5 + 3) + (5 + 2 * 2)
    assert (answer["meta"]["strategy"], answer["meta"]["occluded"]) == ("cascade", 2)
    timings = answer["meta"]["timings_ms"]
    assert 0 < timings["score"] + timings["words"] <= timings["total"] + 0.01  # rounded to 1 us


async def test_the_scores_are_those_of_rerank() -> None:
    """/rerank gives the same scores to the candidate, and to its text without each span."""
    async with running_app(tiny_cross_encoder()) as running:
        answer = (await ask(running)).json()

        assert answer["relevance_score"] == await rank(running, TEXT)
        assert answer["raw_score"] == await rank(running, TEXT, raw_scores=True)
        for span in answer["words"]["spans"]:
            rest = await rank(running, TEXT[: span["start"]] + TEXT[span["end"] :], raw_scores=True)
            assert span["contribution"] == pytest.approx(answer["raw_score"] - rest, abs=TOLERANCE)


async def test_places_are_unicode_code_points() -> None:
    """Places of words and tokens count code points, even after characters that take two units of UTF-16."""
    async with running_app(tiny_cross_encoder()) as running:
        answer = (await ask(running)).json()

    spans = answer["words"]["spans"]
    assert [span["text"] for span in spans] == TEXT.split()
    assert all(TEXT[span["start"] : span["end"]] == span["text"] for span in spans)
    [stage] = answer["stages"]
    said = [token for token in stage["candidate"]["tokens"] if "start" in token]
    assert "".join(TEXT[token["start"] : token["end"]] for token in said) == "".join(TEXT.split())
    asked = [token["piece"] for token in stage["query"]["tokens"]]
    assert asked == [*QUERY.split(), "[SEP]"]


async def test_the_score_is_the_sum_of_its_stages() -> None:
    """A stage that precomputes also says whether its candidate was cached."""
    async with running_app(tiny_cross_encoder(), fast=tiny_bi_encoder()) as running:
        first, second = [(await ask(running, strategy="cascade")).json() for _ in "ab"]

    assert [stage.get("cached") for answer in (first, second) for stage in answer["stages"]] == [
        False, None, True, None,
    ]  # fmt: skip
    assert first["words"] == second["words"]
    total = sum(stage["weight"] * stage["raw_score"] for stage in first["stages"])
    assert first["raw_score"] == pytest.approx(total, abs=TOLERANCE)


async def test_what_is_cut_is_shown() -> None:
    """The answer says where the texts are cut and how many pieces are lost; no span lies in what is not read."""
    model = tiny_cross_encoder(positions=32, max_query_tokens=4, long_candidates="truncate")
    async with running_app(model) as running:
        answer = (await ask(running, candidate="he " * 40)).json()

    [stage] = answer["stages"]
    assert stage["query"]["cut"] == {"start": 11, "end": 14, "tokens": 1}
    room = 32 - 1 - 4 - 1
    assert stage["candidate"]["cut"] == {"start": 3 * room, "end": 120, "tokens": 40 - room}
    assert max(span["end"] for span in answer["words"]["spans"]) < 3 * room


async def test_a_registered_candidate_is_explained_by_its_id() -> None:
    """An unknown id gets a 404, and a text beside an id takes precedence."""
    async with running_app(lookup(man=3.0)) as running:
        await running.client.put("/candidates", json={"candidates": [{"id": "a", "text": "man she"}]})
        by_id = (await ask(running, candidate={"id": "a"})).json()
        with_text = (await ask(running, candidate={"id": "a", "text": "she"})).json()
        unknown = await ask(running, candidate={"id": "b"})

    assert [span["text"] for span in by_id["words"]["spans"]] == ["man", "she"]
    assert [span["text"] for span in with_text["words"]["spans"]] == ["she"]
    assert_error(unknown, 404, "unknown_candidates")


@pytest.mark.parametrize(
    ("fields", "status", "error_type"),
    [
        ({"query": " \n"}, 422, "invalid_input"),
        ({"query": None}, 422, "invalid_input"),
        ({"candidate": None}, 422, "invalid_input"),
        ({"candidate": ["man"]}, 422, "invalid_input"),
        ({"candidate": {"score": 1.0}}, 422, "invalid_input"),
        ({"model": "gpt"}, 404, "unknown_model"),
        ({"strategy": "best"}, 404, "unknown_strategy"),
    ],
    ids=str,
)
async def test_what_cannot_be_explained_is_refused(fields: dict[str, Any], status: int, error_type: str) -> None:
    """The errors are those of /rerank."""
    async with running_app(lookup()) as running:
        assert_error(await ask(running, **fields), status, error_type)


async def test_the_memory_of_an_explanation_is_bounded() -> None:
    """The memory of tokens and of texts with gaps is reserved before they are made, and all of it is given back."""
    settings = Settings(device="cpu", max_in_flight_bytes=400_000)
    async with running_app(LookupScorer({}, max_tokens=2000), settings=settings) as running:
        assert_error(await ask(running, candidate="man " * 1000), 413, "input_too_large")
        assert (await ask(running)).status_code == 200
        assert (await running.scrape()).value("bandrank_memory_in_flight_bytes") == 0


async def test_a_long_candidate_says_which_part_was_looked_at() -> None:
    """An excerpt has the score that /rerank gives to it alone; a short candidate has no excerpt."""
    text = " ".join(["he she you"] * 1000)
    async with running_app(tiny_cross_encoder(num_layers=1)) as running:
        short = (await ask(running)).json()
        answer = (await ask(running, candidate=text)).json()
        [stage] = answer["stages"]
        excerpt = stage["excerpt"]
        alone = await rank(running, text[excerpt["start"] : excerpt["end"]], raw_scores=True)
        seen = await running.scrape()

    assert "excerpt" not in short["stages"][0]
    assert excerpt["raw_score"] == pytest.approx(alone, abs=TOLERANCE)
    assert stage["raw_score"] == answer["raw_score"]
    spans = answer["words"]["spans"]
    assert (spans[0]["start"], spans[-1]["end"]) == (excerpt["start"], excerpt["end"])
    assert answer["meta"]["occluded"] == 7 + len(spans)
    assert seen.value("bandrank_occluded_texts_total") == len(TEXT.split()) + 7 + len(spans)


async def test_an_explanation_is_as_much_work_as_its_texts() -> None:
    """A candidate that can be ranked is not explained if all its texts with a gap exceed the limit on waiting work."""
    text = "man " * 60
    async with running_app(tiny_cross_encoder(), settings=Settings(device="cpu", max_waiting_rows=1000)) as running:
        assert 0 < await rank(running, text) < 1
        assert_error(await ask(running, candidate=text), 413, "input_too_large")


async def test_a_client_that_hangs_up_is_explained_nothing() -> None:
    """The client's work leaves the queue, and the next request is answered."""
    gate = Gate()
    gate.let_through()  # the self-test of the start
    async with running_app(WatchedScorer(tiny_cross_encoder(), gate)) as running:
        await asyncio.to_thread(gate.wait_for_batch)
        body = json.dumps({"query": QUERY, "candidate": TEXT}).encode()
        message: Message = {"type": "http.request", "body": body, "more_body": False}
        held = partial(asyncio.to_thread, gate.wait_for_batch)
        await ask_and_hang_up(running.app, [message], hung_up=held, path="/explain")
        gate.let_through(2)
        assert 0 < await rank(running, TEXT) < 1
        seen = await running.scrape()

    assert seen.value("bandrank_http_requests_total", path="/explain", status="499") == 1
    assert seen.value("bandrank_occluded_texts_total") == 0
    assert seen.value("bandrank_memory_in_flight_bytes") == 0


async def test_explanations_are_counted_apart() -> None:
    async with running_app(lookup()) as running:
        await ask(running)
        await ask(running, query="")
        seen = await running.scrape()

    assert seen.value("bandrank_http_requests_total", path="/explain", status="200") == 1
    assert seen.value("bandrank_http_request_seconds_count", path="/explain") == 1
    assert seen.value("bandrank_occluded_texts_total") == 6
    assert seen.value("bandrank_requests_total") == seen.value("bandrank_candidates_total") == 0
