"""Reads the texts and scores of an answer's hits, and writes the answer with some of them in another order."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bandrank.proxy.added_fields import splits, without_added
from bandrank.proxy.raw_json import (
    Edit,
    Number,
    Part,
    edited,
    encodable,
    find,
    read_document,
    read_elements,
    read_members,
    read_roughly,
    read_value,
    without,
)

REFUSAL = '"illegal_argument_exception"'  # the type of an error, which may be the cause of another
NO_TEXT_SCORE = 0.0  # of hits without a text, if scores are relevances, which are above 0


@dataclass(frozen=True)
class Placed:
    """A hit in its new place. index: its old place.  score: its relevance, or None to leave `_score` as it is."""

    index: int
    score: float | None = None


class SearchAnswer:
    """An answer of the engine whose hits can be read and moved.

    refused: whether a shard refused the search, so that its hits are missing.
    """

    def __init__(self, body: bytes | bytearray, max_hits: int) -> None:
        """Raises ValueError for a body without hits, or on reading more than `max_hits`, and RecursionError for one
        that is nested too deeply.
        """
        # A character for each byte: JSON's own are ASCII, and a single wide one would make all others take four times
        # the memory. A hit that is not all ASCII is decoded by itself when its words count.
        self._text = body.decode("latin-1")
        read_hits = partial(read_elements, read=_read_hit, max_elements=max_hits)
        read_around = partial(read_members, readers={"hits": read_hits})
        root = read_document(self._text, partial(read_members, readers={"hits": read_around}))
        around, shards = find(root, "hits"), find(root, "_shards")
        hits = find(around.value, "hits") if around is not None else None
        if around is None or hits is None:
            raise ValueError("expected hits")
        self._around: list[Part] = around.value
        self._list = hits
        self.hits: list[Part] = hits.value
        self.refused = shards is not None and REFUSAL in self._text[shards.value_start : shards.end]

    def texts(self, fields: Sequence[str]) -> list[str]:
        """The text of each hit, its fields joined by spaces; empty without any. Raises ValueError if not in UTF-8."""
        return [_text_of(*self._decoded(hit), fields) for hit in self.hits]

    def scores(self) -> list[float | None]:
        """The `_score` of each hit; None if it has none, as when hits are sorted by something else."""
        return [_score_of(hit) for hit in self.hits]

    def write(self, page: Sequence[Placed], *, added: Collection[str], best: float | None = None) -> bytes:
        """The answer with only these hits, in this order, and everything else unchanged.

        added: names to take out of the `fields` of hits.  best: the new `max_score`; None to leave it.
        """
        start, end = self._list.value_start, self._list.end
        most = find(self._around, "max_score")
        edits: list[Edit] = []
        if best is not None and most is not None and most.value is not None:
            edits.append(Edit(most.value_start, most.end, repr(best)))
        head = self._raw(0, start, [edit for edit in edits if edit.end <= start])
        tail = self._raw(end, len(self._text), [edit for edit in edits if edit.start >= end])
        return b"".join([head, *self._written_hits(page, added), tail])

    def _written_hits(self, page: Sequence[Placed], added: Collection[str]) -> Iterator[bytes]:
        """The list of hits; the text between two places stays where it is."""
        if not page:
            yield b"[]"
            return
        hits = self.hits
        yield self._raw(self._list.value_start, hits[0].start)
        for place, placed in enumerate(page):
            if place:
                yield self._raw(hits[place - 1].end, hits[place].start)
            yield self._written(hits[placed.index], placed.score, added)
        yield self._raw(hits[-1].end, self._list.end)

    def _written(self, hit: Part, score: float | None, added: Collection[str]) -> bytes:
        text, hit = self._decoded(hit)
        members: list[Part] = hit.value
        edits: list[Edit] = []
        old = find(members, "_score")
        if score is not None and old is not None:
            edits.append(Edit(old.value_start, old.end, repr(score)))
        fields = find(members, "fields")
        if added and fields is not None:
            others, _ = without_added(text, fields.value_start, added)
            edits += without(members, {"fields"}) if others is None else others
        return edited(text, hit.start, hit.end, edits).encode()

    def _raw(self, start: int, end: int, edits: Sequence[Edit] = ()) -> bytes:
        """The bytes from `start` to `end`, with edits."""
        return edited(self._text, start, end, edits).encode("latin-1")

    def _decoded(self, hit: Part) -> tuple[str, Part]:
        """A text that has the hit decoded from UTF-8, and the hit as read from it. Raises ValueError."""
        alone = self._text[hit.start : hit.end]
        if alone.isascii():
            return self._text, hit
        text = alone.encode("latin-1").decode("utf-8")
        members, end = _read_hit(text, 0)
        return text, Part("", 0, 0, end, members)


def _text_of(text: str, hit: Part, fields: Sequence[str]) -> str:
    """The text of some fields of a hit. text: what the hit was read from."""
    source, flat = find(hit.value, "_source"), find(hit.value, "fields")
    values = {part.key: part.value for part in flat.value} if flat is not None else {}
    texts: list[str] = []
    for name in fields:
        found = _at(source.value, name) if source is not None else None
        if source is not None and _has_numbers(found):
            found = _at(read_value(text, source.value_start)[0], name)
        texts += list(_strings(found)) or _strings(_at(values, name))
    return encodable(" ".join(texts))


def _score_of(hit: Part) -> float | None:
    """The score of a hit, if it has a finite one."""
    found = find(hit.value, "_score")
    if found is None or not isinstance(found.value, Number):
        return None
    score = float(found.value)
    return score if math.isfinite(score) else None


def _read_hit(text: str, at: int) -> tuple[list[Part], int]:
    return read_members(text, at, {"fields": read_members, "_source": read_roughly})


def _at(value: Any, path: str) -> Any:
    """The value at a dotted path; a dot may lead into a nested object or a list of them, or be part of a key."""
    if isinstance(value, list):
        return [_at(each, path) for each in value]
    if not isinstance(value, dict):
        return None
    if path in value:
        return value[path]
    return next((_at(value[key], rest) for key, rest in splits(path) if key in value), None)


def _has_numbers(value: Any) -> bool:
    """Whether a value is a number that was read roughly, or a list that has some."""
    return isinstance(value, float) or (isinstance(value, list) and any(map(_has_numbers, value)))


def _strings(value: Any) -> Iterator[str]:
    """The texts in a value: itself, or those in a list. A number counts as the text that it is written as."""
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
