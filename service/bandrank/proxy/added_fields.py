"""Takes out of a hit's `fields` those that the client did not ask for.

Elasticsearch groups fields of nested documents: asked for `notes.text`, it sends `{"notes": [{"text": ["words"]}]}`.
OpenSearch sends `{"notes.text": ["words"]}`.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

from bandrank.proxy.raw_json import Edit, Part, read_elements, read_members, read_value, without

# What to do with a value: edit it, or take it out (None), because nothing would be left in it.
Edits = list[Edit] | None


def without_added(text: str, at: int, added: Collection[str]) -> tuple[Edits, int]:
    """The edits that take the added fields out of the object at `at`, and where it ends. Raises ValueError."""
    inside: dict[str, set[str]] = {}
    for group, rest in (split for name in added for split in splits(name)):
        inside.setdefault(group, set()).add(rest)
    readers = {group: partial(_without_inside, added=names) for group, names in inside.items()}
    members, end = read_members(text, at, readers)
    inner = [part.value if part.key in readers else [] for part in members]
    parts = [
        replace(part, value=None if part.key in added else edits) for part, edits in zip(members, inner, strict=True)
    ]
    return _edits(parts), end


def splits(path: str) -> Iterator[tuple[str, str]]:
    """What is before and behind each dot of a path."""
    return ((path[:at], path[at + 1 :]) for at, character in enumerate(path) if character == ".")


def _without_inside(text: str, at: int, added: Collection[str]) -> tuple[Edits, int]:
    """`without_added` for an object, or for each object in a list; values of other types stay."""
    if text.startswith("{", at):
        return without_added(text, at, added)
    if not text.startswith("[", at):
        return [], read_value(text, at)[1]
    elements, end = read_elements(text, at, partial(_without_inside, added=added))
    return _edits([replace(part, key=str(index)) for index, part in enumerate(elements)]), end


def _edits(parts: list[Part]) -> Edits:
    """The edits of several parts, each of which has its own as its value."""
    gone = {part.key for part in parts if part.value is None}
    if len(gone) == len(parts):
        return None
    return without(parts, gone) + [edit for part in parts for edit in part.value or ()]
