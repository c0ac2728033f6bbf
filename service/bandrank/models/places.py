"""Finds the characters of a text that the token ids of a passage stand for."""

import unicodedata
from collections.abc import Iterator, Sequence

from tokenizers import Encoding

from bandrank.models.texts import TextEncoder, characters

Span = tuple[int, int]  # start and end, which is excluded


def places(encoder: TextEncoder, texts: Sequence[str], tokens: Sequence[Span]) -> list[Span]:
    """The span of characters, in code points, that a span of each candidate's token ids stands for.

    tokens: for each text, a span of the ids that `TextEncoder.candidates` gives. Ids that a template added stand for
    nothing, nor do the words around a text; a span of such ids alone gives (0, 0). No character is parted from the
    marks that combine with it.
    """
    template = encoder.scorer.candidate_template
    if template.sentence_token is None:
        before, after = template.wording.around()
        encodings = encoder.tokenizer.encode_batch([before + text + after for text in texts], add_special_tokens=False)
        located: Iterator[list[tuple[int, Encoding]]] = ([(-len(before), encoding)] for encoding in encodings)
    else:
        located = (encoder.encodings(template, text) for text in texts)
    num_before = int(template.sentence_token is not None)
    return [
        _place(text, parts, begin - len(template.prefix), end - len(template.prefix), num_before)
        for text, parts, (begin, end) in zip(texts, located, tokens, strict=True)
    ]


def _place(text: str, parts: Sequence[tuple[int, Encoding]], begin: int, end: int, num_before: int) -> Span:
    """The characters of the pieces `begin` .. `end` - 1 of a text in parts, each behind `num_before` added ids."""
    spans = []
    first = 0
    for offset, encoding in parts:
        first += num_before
        leading, last = max(begin - first, 0), min(end - first, len(encoding)) - 1
        while leading <= last and offset + characters(encoding, leading)[1] <= 0:  # of the words before the text
            leading += 1
        while leading <= last and offset + characters(encoding, last)[0] >= len(text):
            last -= 1
        if leading <= last:
            spans.append((offset + characters(encoding, leading)[0], offset + characters(encoding, last)[1]))
        first += len(encoding)
    if not spans:
        return 0, 0
    start, end = max(0, spans[0][0]), min(spans[-1][1], len(text))
    return _with_marks(text, start, end) if start < end else (0, 0)


def _with_marks(text: str, start: int, end: int) -> Span:
    """Extends a span over the marks behind it, and back to the character with which a mark at its start combines."""
    while 0 < start < end and _is_mark(text[start]):
        start -= 1
    while end < len(text) and _is_mark(text[end]):
        end += 1
    return start, end


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")
