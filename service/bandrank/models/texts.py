"""Turns texts into the token ids that a scorer reads."""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from tokenizers import Encoding, Tokenizer

from bandrank.models.ids import Ids, PackedIds, RaggedIds, pack_ids
from bandrank.models.scorer import Scorer
from bandrank.models.template import TokenTemplate

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def punctuation_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The first word piece of each ASCII punctuation mark, ascending; a ColBERT keeps no vectors of these."""
    encodings = tokenizer.encode_batch(list(string.punctuation), add_special_tokens=False)
    return tuple(sorted({encoding.ids[0] for encoding in encodings}))


def characters(encoding: Encoding, index: int) -> tuple[int, int]:
    """The code points of a text for which one of its pieces stands, from the first to the one behind the last."""
    place = encoding.token_to_chars(index)
    assert place is not None, "only added tokens have no place, and none was added. This is a bug."
    return place


@dataclass(frozen=True)
class Reach:
    """How far each candidate of a request is read; None sets no limit but the scorer's.

    tokens: the most word pieces of its text, sentence tokens included.  passages: the most passages, for a scorer that
    splits long candidates (MaxP); to any other scorer a candidate is one passage.  pair: the most token ids of
    candidate and query together, special tokens included, or of the candidate alone for a scorer that encodes them
    apart.
    """

    tokens: int | None = None
    passages: int | None = None
    pair: int | None = None


WHOLE = Reach()


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer with a scorer's templates.

    max_candidate_tokens: the most token ids of a candidate, if fewer than the scorer's limit.  query_tokenizer: reads
    queries, if that is another.
    """

    tokenizer: Tokenizer
    scorer: Scorer
    max_candidate_tokens: int | None = None
    query_tokenizer: Tokenizer | None = None

    @property
    def of_queries(self) -> Self:
        """The same with the tokenizer that reads queries."""
        return self if self.query_tokenizer is None else replace(self, tokenizer=self.query_tokenizer)

    @property
    def reading(self) -> tuple[str, tuple[str, str], int | None]:
        """What the word pieces of a text depend on, the same for encoders that read texts alike."""
        template = self.scorer.candidate_template
        return self.tokenizer.to_str(), template.wording.around(), template.sentence_token

    def text_of(self, ids: Sequence[int]) -> str:
        """Decodes token ids, special tokens included."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    @property
    def takes_instructions(self) -> bool:
        """Whether the scorer reads an instruction beside the query."""
        return bool(self.scorer.query_template.wording.instructed)

    def query(self, text: str, instruction: str = "") -> tuple[Ids, int]:
        """Token ids of a query, and the number of its word pieces that did not fit. Words behind the text are never
        cut.

        instruction: for scorers that take one; others ignore it.
        """
        template = self.scorer.query_template
        before, after = template.wording.around(instruction)
        # Encoding a batch, unlike a single text, releases the interpreter lock.
        (whole,) = self.of_queries.tokenizer.encode_batch_fast([before + text + after], add_special_tokens=False)
        if not after or len(whole.ids) <= template.room():
            ids, cut = template.apply(whole.ids)
            return np.array(ids, np.int32), cut
        begun, closing = self.of_queries.tokenizer.encode_batch_fast([before + text, after], add_special_tokens=False)
        room = max(0, template.room() - len(closing.ids))
        ids, _ = template.apply([*begun.ids[:room], *closing.ids])
        return np.array(ids, np.int32), max(0, len(begun.ids) - room)  # apart, there may be fewer pieces, which fit

    def num_query_pieces(self, query: str) -> int:
        """The number of word pieces of a query by itself."""
        (encoding,) = self.of_queries.tokenizer.encode_batch_fast([query], add_special_tokens=False)
        return len(encoding.ids)

    def pieces(self, texts: Sequence[str]) -> list[PackedIds]:
        """Word pieces of candidates, not yet cut to any limit, so that they can be reused with other queries."""
        template = self.scorer.candidate_template
        if (mark := template.sentence_token) is None:
            before, after = template.wording.around()
            worded = [before + text + after for text in texts]
            encodings = self.tokenizer.encode_batch_fast(worded, add_special_tokens=False)
            return [pack_ids(encoding.ids) for encoding in encodings]
        return [
            pack_ids([token for _, sentence in self.encodings(template, text) for token in (mark, *sentence.ids)])
            for text in texts
        ]

    def encodings(self, template: TokenTemplate, text: str) -> list[tuple[int, Encoding]]:
        """Encodes a text, or each of its sentences if the template marks them; each has the code point of its start."""
        parts = [(0, text)] if template.sentence_token is None else _sentences(text)
        encodings = self.tokenizer.encode_batch([part for _, part in parts], add_special_tokens=False)
        return [(begin, encoding) for (begin, _), encoding in zip(parts, encodings, strict=True)]

    def candidates(
        self, pieces: Sequence[PackedIds], *, query_tokens: int, reach: Reach = WHOLE
    ) -> tuple[RaggedIds, list[int]]:
        """Token ids of candidates that share a sequence with a query of `query_tokens` token ids, and the number of
        each one's pieces that did not fit. The query is never cut to make room for a candidate.
        """
        return self.scorer.candidate_template.apply_all(pieces, limit=self.candidate_limit(query_tokens, reach))

    def candidate_limit(self, query_tokens: int, reach: Reach = WHOLE) -> int:
        """The most token ids of a candidate beside a query of `query_tokens`."""
        limit = self.scorer.candidate_limit(query_tokens)
        if self.max_candidate_tokens is not None:
            limit = min(limit, self.max_candidate_tokens)
        if reach.tokens is not None:
            limit = min(limit, reach.tokens + self.scorer.candidate_template.num_added)
        if reach.passages is not None:
            limit = min(limit, self.scorer.passages_limit(query_tokens, reach.passages))
        if reach.pair is not None:
            limit = min(limit, self._pair_limit(query_tokens, reach.pair))
        return limit

    def _pair_limit(self, query_tokens: int, most: int) -> int:
        """The most token ids of a candidate if it and the query may have `most` together. Beside a longer query it gets
        half of them, as if the longer text of a pair were cut first, although the query is not cut here.
        """
        if self.scorer.precomputes:
            return most
        added = self.scorer.candidate_template.num_added
        room = most - self.scorer.pair_tokens(query_tokens, added)
        query_pieces = query_tokens - self.scorer.query_template.num_added
        return added + max(room, (room + query_pieces + 1) // 2)


def _sentences(text: str) -> list[tuple[int, str]]:
    """Splits a text into sentences, each with the code point where it begins."""
    begin = len(text) - len(text.lstrip())
    text = text.strip()
    gaps = [match.span() for match in SENTENCE_END.finditer(text)]
    bounds = zip([0, *(end for _, end in gaps)], [*(start for start, _ in gaps), len(text)], strict=True)
    return [(begin + start, text[start:end]) for start, end in bounds]
