"""What a scorer reads of a text: its token ids, each with the characters that it stands for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from bandrank.models.template import TokenTemplate
from bandrank.models.texts import TextEncoder, characters


@dataclass(frozen=True, slots=True)
class Token:
    """A token id and its piece of the vocabulary.

    start, end: its characters in the text, in code points; None for a token that a template added.
    """

    id: int
    piece: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class Reading:
    """The token ids of a text as a scorer gets them. read_to: the code point where it stops reading the text."""

    tokens: tuple[Token, ...]
    read_to: int


def read_pair(encoder: TextEncoder, query: str, candidate: str, *, instruction: str = "") -> tuple[Reading, Reading]:
    """The readings of a query and of a candidate that is scored for it.

    The ids are those of `TextEncoder.query` and `TextEncoder.candidates`.
    """
    scorer = encoder.scorer
    asked = _read(encoder.of_queries, scorer.query_template, query, instruction=instruction)
    limit = encoder.candidate_limit(len(asked.tokens))
    return asked, _read(encoder, scorer.candidate_template, candidate, limit)


def _read(
    encoder: TextEncoder, template: TokenTemplate, text: str, limit: int | None = None, instruction: str = ""
) -> Reading:
    def added(tokens: Sequence[int]) -> list[Token]:
        return [Token(token, _piece(encoder, token)) for token in tokens]

    before, after = template.wording.around(instruction)
    room = template.room(limit)
    pieces, closing = _worded(encoder, template, before, text, after), list[Token]()
    if after and len(whole := list(pieces)) <= room:
        pieces = iter(whole)
    elif template.closing:
        pieces, closing = iter(whole), added(template.closing)
    elif after:  # what follows the text is never cut, so it is tokenised apart
        closing = [Token(token.id, token.piece) for token in _pieces(encoder, template, after)]
        pieces = _worded(encoder, template, before, text, "")
    kept = list(islice(pieces, max(0, room - len(closing))))
    cut = (piece.start for piece in pieces if piece.start is not None)
    return Reading((*added(template.prefix), *kept, *closing, *added(template.suffix)), next(cut, len(text)))


def _worded(encoder: TextEncoder, template: TokenTemplate, before: str, text: str, after: str) -> Iterator[Token]:
    """Yields the pieces of a text with words around it, at their places in the text; pieces of the words have none."""
    if not before + after:
        yield from _pieces(encoder, template, text)
        return
    for token in _pieces(encoder, template, before + text + after):
        begin, end = (0 if at is None else min(max(0, at - len(before)), len(text)) for at in (token.start, token.end))
        yield replace(token, start=begin, end=end) if begin < end else Token(token.id, token.piece)


def _pieces(encoder: TextEncoder, template: TokenTemplate, text: str) -> Iterator[Token]:
    """Yields the pieces of a text before it is cut, with a sentence token where the template wants one."""
    for begin, encoding in encoder.encodings(template, text):
        if template.sentence_token is not None:
            yield Token(template.sentence_token, _piece(encoder, template.sentence_token))
        for index, token in enumerate(encoding.ids):
            start, end = characters(encoding, index)
            yield Token(token, _piece(encoder, token), begin + start, begin + end)


def _piece(encoder: TextEncoder, token: int) -> str:
    return encoder.tokenizer.id_to_token(token) or ""
