"""Requests whose texts come once in a run, so that no cache helps; the same in every run."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bandrank_bench.workloads import PROSE, passage_tokens

PIECES_PER_WORD = 1.16  # of the prose, with the word pieces of BERT
NUMBER_PIECES = 4  # of the number that makes a text a new one
QUERY_WORDS = 8
HEAD = "POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """message: what goes over the connection, head and body."""

    message: bytes
    num_candidates: int


def requests(
    *,
    seed: int,
    numbers: Iterator[int],
    candidates: Sequence[int],
    fields: Mapping[str, Any],
    texts_field: str = "candidates",
) -> Iterator[Request]:
    """An endless supply of requests.

    Equal seeds give equal texts, but for the number with which each begins; a text is new if `numbers` gives none
    twice, and those of as many digits are equally long. Lengths are those of W1: log-normal, 75 tokens on average.
    candidates: how many a request may have, each in an equal share.  fields: further ones of the body.
    texts_field: the name of the candidates in it, which each service has its own for.
    """
    rng = random.Random(seed)
    while True:
        count = rng.choice(candidates)
        body = {
            "query": _text(QUERY_WORDS, next(numbers), rng),
            texts_field: [_text(_passage_words(rng), next(numbers), rng) for _ in range(count)],
            **fields,
        }
        content = json.dumps(body, separators=(",", ":")).encode()
        yield Request(HEAD.format(length=len(content)).encode() + content, count)


def _passage_words(rng: random.Random) -> int:
    return max(1, round((passage_tokens(rng) - NUMBER_PIECES) / PIECES_PER_WORD))


def _text(num_words: int, number: int, rng: random.Random) -> str:
    """A number and prose: sentences in random order, the last one cut."""
    words = [str(number)]
    while len(words) <= num_words:
        words += rng.choice(_sentences())
    return " ".join(words[: num_words + 1])


@cache
def _sentences() -> list[list[str]]:
    return [sentence.split() for sentence in PROSE.read_text(encoding="utf-8").splitlines()]
