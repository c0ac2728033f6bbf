"""The requests of the overload benchmark: valid, new, and the same in every run."""

import itertools
import json
from statistics import mean
from typing import Any

import pytest

from bandrank_bench.overload.requests import PIECES_PER_WORD, Request, requests


def taken(count: int, *, seed: int = 0, first: int = 1_000_000, **fields: Any) -> list[Request]:
    stream = requests(seed=seed, numbers=itertools.count(first), candidates=(10, 30), fields=fields)
    return list(itertools.islice(stream, count))


def body_of(request: Request) -> dict[str, Any]:
    """Returns the request's JSON, after a check that its head tells the length."""
    head, _, content = request.message.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(content)}".encode() in head
    body: dict[str, Any] = json.loads(content)
    return body


def test_a_request_has_as_many_candidates_as_it_says() -> None:
    made = taken(40, budget_ms=50.0)

    assert {one.num_candidates for one in made} == {10, 30}
    assert all(len(body_of(one)["candidates"]) == one.num_candidates for one in made)
    assert all(body_of(one)["budget_ms"] == 50.0 for one in made)


def test_no_text_comes_twice() -> None:
    bodies = list(map(body_of, taken(200)))
    texts = [text for body in bodies for text in (body["query"], *body["candidates"])]

    assert len(set(texts)) == len(texts)


def test_candidates_may_be_the_same_in_every_request() -> None:
    stream = requests(seed=0, numbers=itertools.count(1_000_000), candidates=(2,), fields={}, texts=["one", "two"])
    first, second = map(body_of, itertools.islice(stream, 2))

    assert first["candidates"] == second["candidates"] == ["one", "two"]
    assert first["query"] != second["query"]


def test_equal_seeds_give_equal_requests() -> None:
    assert taken(5) == taken(5)
    assert taken(5) != taken(5, seed=1)


def test_other_numbers_change_nothing_but_the_numbers() -> None:
    """A client that sends its requests again with new texts sends as many bytes, and the same words."""
    first, again = taken(20), taken(20, first=2_000_000)

    assert [len(one.message) for one in first] == [len(one.message) for one in again]
    for one, other in zip(first, again, strict=True):
        texts, others = body_of(one)["candidates"], body_of(other)["candidates"]
        assert not set(texts) & set(others)
        assert [text.partition(" ")[2] for text in texts] == [text.partition(" ")[2] for text in others]


def test_candidates_have_75_word_pieces_on_average() -> None:
    """The number in a text counts as four; a log-normal of mean 75 and sigma 0.55 deviates by 45, less if clipped."""
    lengths = [len(text.split()) - 1 for one in taken(100) for text in body_of(one)["candidates"]]

    assert 4 + PIECES_PER_WORD * mean(lengths) == pytest.approx(75, abs=3 * 45 / len(lengths) ** 0.5)
    assert len(set(lengths)) > 50
