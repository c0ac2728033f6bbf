"""Which fields a client's names and patterns ask for: as the engines read them, in bounded time and memory."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandrank.proxy.field_patterns import not_asked_for
from bandrank.proxy.outcomes import Skipped
from bandrank.proxy.rerank_options import RerankOptions
from bandrank.proxy.search_request import MAX_PARAMETERS, MAX_PATTERN_CHARACTERS, MAX_PATTERNS, read_search

OPTIONS = RerankOptions(fields=("title", "body"), depth=50, budget_ms=100)
SEARCH = {"query": {"match": {"title": "words"}}, "_source": False}


def fits(pattern: str, name: str) -> bool:
    """The definition: a wildcard matches nothing, or one character followed by the same wildcard."""
    if pattern.startswith("*"):
        return fits(pattern[1:], name) or (name != "" and fits(pattern, name[1:]))
    return name == pattern if not pattern or not name else pattern[0] == name[0] and fits(pattern[1:], name[1:])


def asked_for(body: Any, query_string: bytes = b"") -> list[str]:
    """The `fields` of the deeper search."""
    search = read_search(OPTIONS, query_string, json.dumps(body).encode(), None)
    names: list[str] = json.loads(search.body)["fields"]
    return names


@given(st.lists(st.text("ab?[]*", max_size=8), max_size=3), st.lists(st.text("ab?[]", max_size=8), max_size=3))
def test_patterns_fit_as_they_are_defined(patterns: list[str], names: list[str]) -> None:
    left = [name for name in names if not any(fits(pattern, name) for pattern in patterns)]

    assert not_asked_for(names, set(patterns)) == left


def test_only_a_star_is_a_wildcard() -> None:
    """The engine finds no field for any other pattern, so the proxy still has to ask for its texts."""
    other = ["titl?", "[b]ody", "[!a]*"]

    assert asked_for({**SEARCH, "fields": other}) == [*other, "title", "body"]


def test_patterns_leave_nothing_in_memory() -> None:
    """A client can send a new pattern with each search, so nothing may be cached."""
    bodies = [{**SEARCH, "fields": [f"t{number}" + "i*" * (MAX_PATTERN_CHARACTERS // 2 - 10)]} for number in range(10)]
    asked_for(bodies[0])
    tracemalloc.start()
    try:
        for body in bodies[1:]:
            asked_for(body)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert left < MAX_PATTERN_CHARACTERS


@pytest.mark.parametrize(
    ("most", "more"), [([f"{number}*" for number in range(MAX_PATTERNS)], "x*"), (["*" * MAX_PATTERN_CHARACTERS], "*")]
)
def test_more_patterns_than_can_be_compared(most: list[str], more: str) -> None:
    """Comparing each pattern with each ranked field blocks all other requests; plain names are looked up in a set."""
    names = [f"x{number}" for number in range(10_000)]

    assert asked_for({**SEARCH, "fields": [*names, *most, "title"]})
    with pytest.raises(Skipped, match="large_request"):
        asked_for({**SEARCH, "fields": [*most, more]})


def test_more_parameters_than_can_be_read() -> None:
    """Headers have room for sixteen thousand parameters, which would take as long as a large body to read."""
    assert asked_for(SEARCH, b"&".join([b"a"] * MAX_PARAMETERS))
    with pytest.raises(Skipped, match="large_request"):
        asked_for(SEARCH, b"&".join([b"a"] * (MAX_PARAMETERS + 1)))
