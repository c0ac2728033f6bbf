"""The four workloads: texts with exact token counts, new in every round and the same on every machine.

W1 is a page of passages (log-normal lengths), W0 ten of them, W2 has passages of one length (164 tokens, as timed by
Schlatt et al. 2024), W3 long documents (4,096 tokens). A text is English prose, sentences in random order, cut to a
number of word pieces. Different rounds share only the shortest texts, so that no cache of token ids can help.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

QUERY_TOKENS = 10
SPECIAL_TOKENS = 3  # [CLS] query [SEP] passage [SEP]
PROSE = Path(__file__).with_name("prose.txt")


@dataclass(frozen=True)
class Request:
    """A query with its passages. pair_tokens: the length of each pair in tokens, with special tokens."""

    query: str
    passages: list[str]
    pair_tokens: list[int]

    @property
    def total_tokens(self) -> int:
        """Tokens of all pairs."""
        return sum(self.pair_tokens)

    def head(self, count: int) -> "Request":
        """The same request with only the first `count` passages."""
        return Request(self.query, self.passages[:count], self.pair_tokens[:count])


def load_tokenizer(checkpoint: Path) -> Tokenizer:
    """Loads the tokenizer of a checkpoint."""
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


class Writer:
    """Writes prose of an exact number of word pieces.

    A word between two spaces has as many pieces in a text as alone, so the pieces of words add up.
    space: precedes every word, even the first, if that changes its pieces.  special_tokens: around a pair's texts.
    """

    def __init__(self, tokenizer: Tokenizer, *, space: str = "", special_tokens: int = SPECIAL_TOKENS) -> None:
        self.special_tokens = special_tokens
        sentences = [sentence.split() for sentence in PROSE.read_text(encoding="utf-8").splitlines()]
        words = sorted({word for sentence in sentences for word in sentence})  # sorted: sets differ between processes
        encodings = tokenizer.encode_batch([f"{space}{word}" for word in words], add_special_tokens=False)
        pieces = {word: len(encoding.ids) for word, encoding in zip(words, encodings, strict=True)}
        self._sentences = [[(word, pieces[word]) for word in sentence] for sentence in sentences]
        self._fillers = [word for word in words if pieces[word] == 1]

    def write(self, num_pieces: int, rng: random.Random) -> str:
        """Writes a text of this many pieces. If the next word is too long, words of one piece fill the end."""
        text: list[str] = []
        missing = num_pieces
        while missing:
            for word, pieces in rng.choice(self._sentences):
                if pieces > missing:
                    text += rng.choices(self._fillers, k=missing)
                    missing = 0
                    break
                text.append(word)
                missing -= pieces
        return " ".join(text)


@dataclass(frozen=True)
class Workload:
    """A named shape of requests. passage_tokens: gives the lengths of a round's passages, without special tokens."""

    name: str
    title: str
    rounds: int
    passage_tokens: Callable[[int], list[int]]

    def request(self, writer: Writer, round_number: int) -> Request:
        """Makes the request of a round; equal round numbers give equal texts."""
        rng = random.Random(f"{self.name} {round_number}")
        lengths = self.passage_tokens(round_number)
        return Request(
            query=writer.write(QUERY_TOKENS, rng),
            passages=[writer.write(length, rng) for length in lengths],
            pair_tokens=[QUERY_TOKENS + length + writer.special_tokens for length in lengths],
        )


def page_of_passages(round_number: int) -> list[int]:
    """The lengths of 100 passages. Rounds cycle through eight such pages."""
    return list(_page(round_number % 8))


def few_passages(round_number: int) -> list[int]:
    """The lengths of 10 passages."""
    return page_of_passages(round_number)[:10]


@cache
def _page(number: int) -> tuple[int, ...]:
    rng = random.Random(f"page {number}")
    return tuple(passage_tokens(rng) for _ in range(100))


def passage_tokens(rng: random.Random) -> int:
    """The length of a passage: log-normal with sigma 0.55 and mean 75, clipped to 8 ... 200."""
    sigma, mean = 0.55, 75.0
    mu = math.log(mean) - sigma**2 / 2
    return min(200, max(8, round(rng.lognormvariate(mu, sigma))))


def _pairs_of(pair_tokens: int, count: int) -> Callable[[int], list[int]]:
    return lambda _: [pair_tokens - QUERY_TOKENS - SPECIAL_TOKENS] * count


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W0", "a 10-token query, 10 passages of log-normal length, mean 75 tokens", 8, few_passages),
        Workload("W1", "a 10-token query, 100 passages of log-normal length, mean 75 tokens", 6, page_of_passages),
        Workload("W2", "a 10-token query, 100 pairs of exactly 164 tokens", 4, _pairs_of(164, 100)),
        Workload("W3", "a 10-token query, 10 pairs of exactly 4,096 tokens", 2, _pairs_of(4096, 10)),
    )
}
