"""Plain values parsed into dataclasses, with messages that name the keys that lead to what is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from bandrank.models.plain import parse


@dataclass(frozen=True)
class Leaf:
    """A dataclass that checks a value."""

    size: int = 1
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size must be at least 0, got {self.size}")


@dataclass(frozen=True)
class Tree:
    """A dataclass with every type that configs and recipes have."""

    name: str
    leaf: Leaf
    leaves: tuple[Leaf, ...] = ()
    rate: float = 0.5
    known: bool = False
    limit: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


LEAF = {"size": 2, "kind": "b"}


def test_plain_values_become_dataclasses() -> None:
    """Lists become tuples, an int may stand for a float, and missing values get their defaults."""
    value = {"name": "x", "leaf": LEAF, "leaves": [LEAF, {}], "rate": 2, "limit": None, "tags": ["a", "b"]}

    assert parse(Tree, value) == Tree("x", Leaf(2, "b"), (Leaf(2, "b"), Leaf()), 2, tags=("a", "b"))
    assert parse(Tree, {"name": "x", "leaf": Leaf(3), "limit": 4}) == Tree("x", Leaf(3), limit=4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"nam": "x", "b": 1}, TypeError, "unknown keys: b, nam"),
        ({"leaf": {"siz": 1}}, TypeError, "leaf: unknown keys: siz"),
        ({"leaf": 3}, TypeError, "leaf: expected an object for Leaf, got 3"),
        ({"leaves": [{}, {"kind": "c"}]}, ValueError, "leaves: kind: 'c' is none of 'a', 'b'"),
        ({"leaves": [{"size": -1}]}, ValueError, "leaves: size must be at least 0, got -1"),
        ({"leaves": "ab"}, TypeError, "leaves: expected a list, got 'ab'"),
        ({"tags": "ab"}, TypeError, "tags: expected a list, got 'ab'"),
        ({"tags": [1]}, TypeError, "tags: expected str, got 1"),
        ({"rate": "1e-3"}, TypeError, "rate: expected float, got '1e-3'"),
        ({"rate": True}, TypeError, "rate: expected float, got True"),
        ({"known": 1}, TypeError, "known: expected bool, got 1"),
        ({"limit": 1.5}, TypeError, "limit: expected int, got 1.5"),
        ({"name": None}, TypeError, "name: expected str, got None"),
        ({"weights": ["a"]}, TypeError, r"weights: expected an object, got \['a'\]"),
        ({"weights": {"a": "b"}}, TypeError, "weights: expected float, got 'b'"),
    ],
)
def test_what_does_not_fit_is_told(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        parse(Tree, {"name": "x", "leaf": LEAF} | change)


def test_what_is_missing_is_told() -> None:
    with pytest.raises(TypeError, match=r"^missing keys: leaf, name$"):
        parse(Tree, {})
    with pytest.raises(TypeError, match=r"^expected an object for Tree"):
        parse(Tree, "x")
