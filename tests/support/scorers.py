"""Scorers that watch, hold or fail a batch on its way to another scorer, and one whose scores are known beforehand."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from support.tasks import HANG_S
from support.tokenizer import TOKENIZER_FILE, tiny_tokenizer, tiny_vocabulary
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.static import StaticConfig
from bandrank.models.loading import LoadedModel
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank.models.template import TextOf, TokenTemplate

Watch = Callable[[ScoreBatch], None]


class Unsplit(StaticConfig):
    """The config of an encoder that computes nothing. It counts as causal, so that no batch is split over workers."""

    causal: ClassVar[bool] = True


NOTHING: Any = SimpleNamespace(config=Unsplit(vocab_size=1, hidden_size=1))


class WatchedScorer(Scorer):
    """Scores as `inner` does, after `watch` has seen the batch as token ids; what `watch` raises fails the batch."""

    architecture: ClassVar[str] = "watched"
    precomputes: ClassVar[bool] = False
    config_class: ClassVar[type] = object

    def __init__(self, inner: Scorer, watch: Watch) -> None:
        super().__init__()
        self.encoder = NOTHING
        self.inner = inner
        self.watch = watch
        self.config: Any = inner.config
        self.attention = inner.attention
        self.query_template = inner.query_template
        self.candidate_template = inner.candidate_template

    @property
    def overflows_float16(self) -> bool:
        return self.inner.overflows_float16

    @property
    def row_cost(self) -> float:
        return self.inner.row_cost

    def facts(self, query_text_of: TextOf, text_of: TextOf) -> dict[str, str]:
        return self.inner.facts(query_text_of, text_of)

    def candidate_limit(self, query_tokens: int) -> int:
        return self.inner.candidate_limit(query_tokens)

    def num_rows(self, query_tokens: int, candidate_tokens: int) -> int:
        return self.inner.num_rows(query_tokens, candidate_tokens)

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        return tokens

    def score(self, batch: ScoreBatch) -> Tensor:
        self.watch(batch)
        scores: Tensor = self.inner(batch)
        return scores


class LookupScorer(Scorer):
    """A candidate's score is that of its first token id in `scores`, whatever the query; 0 for any other id."""

    architecture: ClassVar[str] = "lookup"
    precomputes: ClassVar[bool] = False
    config_class: ClassVar[type] = object

    def __init__(self, scores: dict[int, float], *, max_tokens: int = 64) -> None:
        super().__init__()
        self.encoder = NOTHING
        self.config: Any = None
        self.query_template = self.candidate_template = TokenTemplate((), (0,), max_tokens)
        self._scores = scores

    @property
    def overflows_float16(self) -> bool:
        return False

    @property
    def row_cost(self) -> float:
        return 1.0

    def facts(self, query_text_of: TextOf, text_of: TextOf) -> dict[str, str]:
        del query_text_of, text_of
        return {}

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        return tokens

    def score(self, batch: ScoreBatch) -> Tensor:
        first = [int(batch.candidates[index][0]) for index in range(len(batch.candidates))]
        return torch.tensor([self._scores.get(token, 0.0) for token in first], dtype=torch.float32)


class EncodedLookupScorer(LookupScorer):
    """A lookup that precomputes: a candidate's representation is its score. `watch` sees the token ids it encodes."""

    architecture: ClassVar[str] = "encoded lookup"
    precomputes: ClassVar[bool] = True
    representation_size = 1

    def __init__(self, scores: dict[int, float], *, watch: Callable[[Ragged], None] = lambda _: None) -> None:
        super().__init__(scores)
        self.config: Any = EmptyConfig()
        self._watch = watch

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        self._watch(tokens)
        first = [self._scores.get(int(tokens[index][0]), 0.0) for index in range(len(tokens))]
        return Ragged(torch.tensor(first)[:, None], np.arange(len(first) + 1))

    def score(self, batch: ScoreBatch) -> Tensor:
        return batch.candidates.values[:, 0]


@dataclass(frozen=True)
class EmptyConfig:
    """The config of a scorer without settings."""


class Gate:
    """Holds the scoring thread at the start of each batch until the test lets that batch through."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)

    def __call__(self, _: object) -> None:
        self._arrived.release()
        if not self._passes.acquire(timeout=HANG_S):
            raise TimeoutError("the test let no batch through")

    def wait_for_batch(self) -> None:
        """Returns once a batch is held. Raises TimeoutError if none comes."""
        if not self._arrived.acquire(timeout=HANG_S):
            raise TimeoutError("no batch came")

    def let_through(self, batches: int = 1) -> None:
        """Lets this many batches pass, now or when they come."""
        self._passes.release(batches)


class Recorder:
    """Keeps every batch that it watches."""

    def __init__(self) -> None:
        self.batches: list[ScoreBatch] = []

    def __call__(self, batch: ScoreBatch) -> None:
        self.batches.append(batch)


def word_id(word: str) -> int:
    """The id of a word that is one piece of the tiny tokenizer."""
    return tiny_vocabulary()[word]


def loaded(scorer: Scorer, *, name: str = "tiny") -> LoadedModel:
    """The scorer with the tiny tokenizer, as `load_model` would return it. The folder holds no weights."""
    return LoadedModel(name=name, folder=TOKENIZER_FILE.parent, scorer=scorer, tokenizer=tiny_tokenizer())


def lookup(**scores: float) -> LookupScorer:
    """A scorer that gives a text the score of its first word; other words score 0."""
    return LookupScorer({word_id(word): score for word, score in scores.items()})


def encoded_lookup(watch: Callable[[Ragged], None] = lambda _: None, **scores: float) -> EncodedLookupScorer:
    """A precomputing scorer that gives a text the score of its first word."""
    return EncodedLookupScorer({word_id(word): score for word, score in scores.items()}, watch=watch)


def contains(batch: ScoreBatch, token: int) -> bool:
    """Whether a candidate of the batch has this token id."""
    return bool((batch.candidates.values == token).any())
