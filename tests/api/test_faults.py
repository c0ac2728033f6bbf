"""Error messages for a value that could have been of several kinds."""

import pytest
from pydantic import BaseModel

from bandrank.api.parsing import validated
from bandrank.errors import InvalidInput

NO_TEXT = "Input should be a valid string"
NEITHER, LIST = f"{NO_TEXT} or an object", f"{NO_TEXT} or a valid array"


class Item(BaseModel):
    """An object with a text, which may hold others."""

    text: str
    more: "list[str | Item] | None" = None


class Body(BaseModel):
    """Values of every kind that requests have."""

    one: str | list[str] | None = None
    items: list[str | Item] = []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"one": 5}, f"one: {LIST}"),
        ({"one": ["a", 5]}, f"one.1: {NO_TEXT}"),
        ({"items": "a"}, "items: Input should be a valid array"),
        ({"items": ["a", None]}, f"items.1: {NEITHER}"),
        ({"items": [{"text": 5}]}, f"items.0.text: {NO_TEXT}"),
        ({"items": [{}]}, "items.0.text: Field required"),
        ({"items": [{"text": "a", "more": [{"text": "a"}, 5]}]}, f"items.0.more.1: {NEITHER}"),
        ({"items": [1, {}], "one": 2}, f"one: {LIST}; items.0: {NEITHER}; items.1.text: Field required"),
        ({"items": [1, 2, 3, 4, 5]}, f"items.0: {NEITHER}; items.1: {NEITHER}; items.2: {NEITHER} (and 2 more)"),
        ([], "Input should be an object"),
    ],
)
def test_a_fault_is_named_by_its_place_in_the_body(body: object, said: str) -> None:
    """The path names no member of a union, and each value has one fault, that of the kind which it resembles."""
    with pytest.raises(InvalidInput) as raised:
        validated(Body, body)

    assert str(raised.value) == said
