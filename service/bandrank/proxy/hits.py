"""The hits of an answer: their texts, and the same answer with some of them, in another order."""

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bandrank.proxy.raw_json import (
    Edit,
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

NO_TEXT_SCORE = 0.0  # of hits without a text, where hits have their relevance: it lies above 0


@dataclass(frozen=True)
class Placed:
    """A hit in its new place. index: in the answer.  score: its relevance, or None to leave `_score` as it is."""

    index: int
    score: float | None = None


class SearchAnswer:
    """An answer of the engine whose hits can be read and moved."""

    def __init__(self, body: bytes | bytearray) -> None:
        """Raises ValueError for what is no answer with hits, and RecursionError for one that is nested too deeply."""
        self._text = body.decode("utf-8")
        self.num_bytes = sys.getsizeof(self._text)  # of memory: of all characters as many as of the one that needs most
        root = read_document(self._text, _read_answer)
        around = find(root, "hits")
        hits = find(around.value, "hits") if around is not None else None
        if around is None or hits is None:
            raise ValueError("expected hits")
        self._around: list[Part] = around.value
        self._list = hits
        self.hits: list[Part] = hits.value

    def texts(self, fields: Sequence[str]) -> list[str]:
        """The text of each hit: what its fields say, joined by spaces; empty without any."""
        return [self._text_of(hit.value, fields) for hit in self.hits]

    def write(self, page: Sequence[Placed], *, added: Collection[str], best: float | None = None) -> bytes:
        """The answer with these hits alone, in this order, and everything else as it was.

        added: names to be taken out of the `fields` of hits.  best: the new `max_score`; None to leave it.
        """
        start, end = self._list.value_start, self._list.end
        most = find(self._around, "max_score")
        changed = best is not None and most is not None and most.value is not None
        edits = [Edit(most.value_start, most.end, repr(best))] if changed and most is not None else []
        # Encoded piece by piece: as one text, the answer would take four times as much for a single wide character.
        answer = bytearray(edited(self._text, 0, start, [edit for edit in edits if edit.end <= start]).encode())
        for piece in self._written_hits(page, added):
            answer += piece.encode()
        answer += edited(self._text, end, len(self._text), [edit for edit in edits if edit.start >= end]).encode()
        return bytes(answer)

    def _written_hits(self, page: Sequence[Placed], added: Collection[str]) -> Iterator[str]:
        """The list of hits; what stood between two of them now stands between those in the same places."""
        if not page:
            yield "[]"
            return
        hits, text = self.hits, self._text
        yield text[self._list.value_start : hits[0].start]
        for place, placed in enumerate(page):
            if place:
                yield text[hits[place - 1].end : hits[place].start]
            yield self._written(hits[placed.index], placed.score, added)
        yield text[hits[-1].end : self._list.end]

    def _written(self, hit: Part, score: float | None, added: Collection[str]) -> str:
        members: list[Part] = hit.value
        edits: list[Edit] = []
        old = find(members, "_score")
        if score is not None and old is not None:
            edits.append(Edit(old.value_start, old.end, repr(score)))
        fields = find(members, "fields")
        if added and fields is not None:
            if {part.key for part in fields.value} <= {*added}:  # the client asked for none of them
                edits += without(members, {"fields"})
            else:
                edits += without(fields.value, added)
        return edited(self._text, hit.start, hit.end, edits)

    def _text_of(self, hit: Sequence[Part], fields: Sequence[str]) -> str:
        source, flat = find(hit, "_source"), find(hit, "fields")
        values = {part.key: part.value for part in flat.value} if flat is not None else {}
        texts: list[str] = []
        for name in fields:
            found = _at(source.value, name) if source is not None else None
            if source is not None and _has_numbers(found):
                found = _at(read_value(self._text, source.value_start)[0], name)
            texts += list(_strings(found)) or _strings(values.get(name))
        return encodable(" ".join(texts))


def _read_answer(text: str, at: int) -> tuple[list[Part], int]:
    return read_members(text, at, {"hits": _read_around})


def _read_around(text: str, at: int) -> tuple[list[Part], int]:
    return read_members(text, at, {"hits": _read_hits})


def _read_hits(text: str, at: int) -> tuple[list[Part], int]:
    return read_elements(text, at, _read_hit)


def _read_hit(text: str, at: int) -> tuple[list[Part], int]:
    return read_members(text, at, {"fields": read_members, "_source": read_roughly})


def _at(value: Any, path: str) -> Any:
    """The value at a path with dots, which may stand for nested objects, lists of them, and for dots in a key."""
    if isinstance(value, list):
        return [_at(each, path) for each in value]
    if not isinstance(value, dict):
        return None
    if path in value:
        return value[path]
    head, _, rest = path.partition(".")
    return _at(value.get(head), rest) if rest else None


def _has_numbers(value: Any) -> bool:
    """Whether a value is a number that was read roughly, or a list that has some."""
    return isinstance(value, float) or (isinstance(value, list) and any(map(_has_numbers, value)))


def _strings(value: Any) -> Iterator[str]:
    """The texts in a value: itself, or those of a list. A number is the text that it is written as."""
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
