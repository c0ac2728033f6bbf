"""Finds, reads and moves parts of a JSON text without serialising them anew.

Only the structure around the parts is parsed here; the standard library's scanner reads their values. Numbers stay as
they are written.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Of an object that is parsed here: each member is a Python object, and collecting garbage among a million of them holds
# everybody up. A search engine's mapping has a thousand fields at most by default.
MAX_MEMBERS = 1024
SPACE = re.compile(r"[ \t\n\r]*")
Reader = Callable[[str, int], tuple[Any, int]]


@dataclass(frozen=True, slots=True)
class Part:
    """A member of an object or an element of a list. start, end: its bounds, a member's with its key.

    value_start: where its value begins.  value: what was read there.
    """

    key: str
    start: int
    value_start: int
    end: int
    value: Any


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces what is between `start` and `end` by `text`."""

    start: int
    end: int
    text: str


class Number(str):
    """A number, as it is written."""

    __slots__ = ()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# Functions, after which other threads can get the interpreter's lock. Without them the scanner, which is in C, keeps it
# for a fifth of a second while it reads half a million numbers.
def _as_written(number: str) -> Number:
    return Number(number)


def _as_float(number: str) -> float:
    return float(number)


_DECODER = json.JSONDecoder(parse_int=_as_written, parse_float=_as_written, parse_constant=_refuse)
_FAST_DECODER = json.JSONDecoder(parse_int=_as_float, parse_float=_as_float, parse_constant=_refuse)


def read_value(text: str, at: int) -> tuple[Any, int]:
    """The value at `at`, and where it ends. Its numbers are of the type Number. Raises ValueError."""
    return _DECODER.raw_decode(text, at)


def read_roughly(text: str, at: int) -> tuple[Any, int]:
    """Like `read_value`, but with numbers as floats, which may be rounded; six times as fast for numbers."""
    return _FAST_DECODER.raw_decode(text, at)


def read_members(text: str, at: int, readers: Mapping[str, Reader] | None = None) -> tuple[list[Part], int]:
    """The members of the object at `at`, and where it ends.

    readers: of the values of some keys; `read_value` reads the others.  Raises ValueError for anything but an object,
    for more than MAX_MEMBERS members, and for a duplicate key, since nothing says which of its values counts.
    """
    members: list[Part] = []
    keys: set[str] = set()
    at = _expect(text, at, "{")
    if text.startswith("}", at):
        return members, at + 1
    while True:
        start = at
        key, at = read_value(text, at)
        if not isinstance(key, str) or key in keys or text[start] != '"':
            raise ValueError(f"expected another key at {start}")
        if len(members) == MAX_MEMBERS:
            raise ValueError(f"expected no more than {MAX_MEMBERS} members")
        keys.add(key)
        value_start = _expect(text, _skip(text, at), ":")
        value, end = ((readers or {}).get(key) or read_value)(text, value_start)
        members.append(Part(key, start, value_start, end, value))
        at = _skip(text, end)
        if text.startswith("}", at):
            return members, at + 1
        at = _expect(text, at, ",")


def read_elements(text: str, at: int, read: Reader, max_elements: float = math.inf) -> tuple[list[Part], int]:
    """The elements of the list at `at`, each read by `read`, and where it ends.

    Raises ValueError, also on reaching more than `max_elements` elements.
    """
    elements: list[Part] = []
    at = _expect(text, at, "[")
    if text.startswith("]", at):
        return elements, at + 1
    while True:
        if len(elements) >= max_elements:
            raise ValueError(f"expected no more than {max_elements} elements")
        value, end = read(text, at)
        elements.append(Part("", at, at, end, value))
        at = _skip(text, end)
        if text.startswith("]", at):
            return elements, at + 1
        at = _expect(text, at, ",")


def read_document(text: str, read: Reader) -> Any:
    """What `read` finds in a text that holds one value and nothing else. Raises ValueError."""
    value, end = read(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise ValueError(f"expected the end at {end}")
    return value


def find(parts: Iterable[Part], key: str) -> Part | None:
    """The member with a key, or None."""
    return next((part for part in parts if part.key == key), None)


def without(parts: Sequence[Part], keys: Collection[str]) -> list[Edit]:
    """Edits that take members out of an object, each with the comma beside it."""
    edits = []
    any_left = False
    for index, part in enumerate(parts):
        if part.key not in keys:
            any_left = True
        elif any_left:
            edits.append(Edit(parts[index - 1].end, part.end, ""))
        else:
            edits.append(Edit(part.start, parts[index + 1].start if index + 1 < len(parts) else part.end, ""))
    return edits


def edited(text: str, start: int, end: int, edits: Iterable[Edit]) -> str:
    """The text from `start` to `end`, with edits that do not overlap."""
    pieces = []
    for edit in sorted(edits, key=lambda edit: edit.start):
        pieces += [text[start : edit.start], edit.text]
        start = edit.end
    return "".join([*pieces, text[start:end]])


def encodable(text: str) -> str:
    """The text with lone surrogates, which JSON can escape but UTF-8 cannot encode, replaced."""
    if text.isascii():  # as most are, and large ones take long to copy
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _expect(text: str, at: int, character: str) -> int:
    """Where the text goes on after `character` and white space. Raises ValueError if it is not at `at`."""
    if not text.startswith(character, at):
        raise ValueError(f"expected {character} at {at}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    """The first position from `at` on that is not white space."""
    found = SPACE.match(text, at)
    return at if found is None else found.end()
