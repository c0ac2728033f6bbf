"""Texts to a scorer's token ids."""

from __future__ import annotations  # array[int] cannot be evaluated before Python 3.12

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from bandrank.models.scorer import Scorer

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer with a scorer's templates. What it does depends on nothing but the texts given.

    max_candidate_tokens: a limit below the scorer's own, or None.
    """

    tokenizer: Tokenizer
    scorer: Scorer
    max_candidate_tokens: int | None = None

    def query(self, text: str) -> tuple[list[int], int]:
        """Token ids of a query, and how many of its word pieces did not fit."""
        return self.scorer.query_template.apply(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def pieces(self, texts: Sequence[str]) -> list[array[int]]:
        """Word pieces of candidates, before any limit: they can be kept and used beside any query."""
        sentence_token = self.scorer.candidate_template.sentence_token
        if sentence_token is None:
            encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [array("i", encoding.ids) for encoding in encodings]
        marked = []
        for text in texts:
            sentences = self.tokenizer.encode_batch_fast(SENTENCE_END.split(text.strip()), add_special_tokens=False)
            marked.append(array("i", [token for sentence in sentences for token in (sentence_token, *sentence.ids)]))
        return marked

    def candidates(self, pieces: Sequence[Sequence[int]], *, query_tokens: int) -> list[tuple[list[int], int]]:
        """Token ids of candidates beside a query of `query_tokens`, each with how many of its pieces did not fit.

        A long candidate never takes room from the query.
        """
        limit = self.scorer.candidate_limit(query_tokens)
        if self.max_candidate_tokens is not None:
            limit = min(limit, self.max_candidate_tokens)
        return [self.scorer.candidate_template.apply(each, limit=limit) for each in pieces]
