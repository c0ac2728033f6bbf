"""Requests that are the same in every run, with texts that never repeat in a run, so that no cache helps."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bandrank_bench.workloads import PROSE, passage_tokens

PIECES_PER_WORD = 1.16  # BERT's word pieces in the prose
NUMBER_PIECES = 4  # of the number that makes a text new
QUERY_WORDS = 8
HEAD = "POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """A request. message: the bytes to send, head and body."""

    message: bytes
    num_candidates: int


def requests(
    *,
    seed: int,
    numbers: Iterator[int],
    candidates: Sequence[int],
    fields: Mapping[str, Any],
    texts_field: str = "candidates",
    texts: Sequence[str] = (),
) -> Iterator[Request]:
    """Yields requests without end.

    Equal seeds give equal texts, except for the numbers with which they begin. Texts are new if `numbers` never repeat,
    and equally long if their numbers have equally many digits. Lengths are W1's: log-normal, 75 tokens on average.
    candidates: numbers of candidates to draw from, with equal chances.  fields: further fields of the body.
    texts_field: the service's name for the candidates.  texts: the candidates of every request, instead of new ones.
    """
    rng = random.Random(seed)
    while True:
        count = rng.choice(candidates)
        body = {
            "query": _text(QUERY_WORDS, next(numbers), rng),
            texts_field: texts or passages(count, numbers, rng),
            **fields,
        }
        content = json.dumps(body, separators=(",", ":")).encode()
        yield Request(HEAD.format(length=len(content)).encode() + content, count)


def passages(count: int, numbers: Iterator[int], rng: random.Random) -> list[str]:
    """Candidates of W1's lengths."""
    return [_text(_passage_words(rng), next(numbers), rng) for _ in range(count)]


def _passage_words(rng: random.Random) -> int:
    return max(1, round((passage_tokens(rng) - NUMBER_PIECES) / PIECES_PER_WORD))


def _text(num_words: int, number: int, rng: random.Random) -> str:
    """Writes a number and prose: sentences in random order, the last one cut."""
    words = [str(number)]
    while len(words) <= num_words:
        words += rng.choice(_sentences())
    return " ".join(words[: num_words + 1])


@cache
def _sentences() -> list[list[str]]:
    return [sentence.split() for sentence in PROSE.read_text(encoding="utf-8").splitlines()]
