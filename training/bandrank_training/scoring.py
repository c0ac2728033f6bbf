"""A scorer over many queries and their candidates, offline: the same scores as the service gives, without it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, tee
from operator import itemgetter
from typing import Protocol, Self

import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.fusion import Fusion
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.models.ragged import Ragged
from bandrank.models.texts import TextEncoder
from bandrank_kernels.arrays import offsets
from bandrank_kernels.grouping import runs_within
from bandrank_training.placement import CPU, Placement


@dataclass(frozen=True)
class Question:
    """A query and what to score for it."""

    query: str
    candidates: Sequence[str]


class PoolScorer(Protocol):
    """What scores pools: one scorer, or two whose scores are summed."""

    def score(self, questions: Iterable[Question]) -> Iterator[list[float]]:
        """Raw scores of each question's candidates, in the order given."""

    def forget(self) -> None:
        """Frees what was kept of candidates."""


def score_offline(
    model: LoadedModel,
    placement: Placement = CPU,
    *,
    max_candidate_tokens: int | None = None,
) -> PoolScorer:
    """The model as the service has it: with the fast scorer to whose scores its own are added, if it says so.

    max_candidate_tokens: what is read of a candidate at most. Raises BadCheckpoint.
    """
    scorer = OfflineScorer(model, placement, max_candidate_tokens=max_candidate_tokens)
    if model.fusion is None:
        return scorer
    fast = score_offline(load_model(model.fusion.scorer), placement, max_candidate_tokens=max_candidate_tokens)
    return FusedScorer(scorer, fast, model.fusion)


class FusedScorer:
    """Sums the scores of two."""

    def __init__(self, accurate: PoolScorer, fast: PoolScorer, fusion: Fusion) -> None:
        self._accurate, self._fast, self._fusion = accurate, fast, fusion

    def score(self, questions: Iterable[Question]) -> Iterator[list[float]]:
        """As an OfflineScorer does."""
        ours, theirs = tee(questions)
        for accurate, fast in zip(self._accurate.score(ours), self._fast.score(theirs), strict=True):
            yield self._fusion.fuse(accurate, fast)

    def forget(self) -> None:
        """As an OfflineScorer does."""
        self._accurate.forget()
        self._fast.forget()


class OfflineScorer:
    """Scores pools. Candidates of a scorer that precomputes are encoded once, however many queries share them, and
    their representations are kept: `forget()` frees them.

    max_batch_tokens: token ids that go through the encoder at once, a longer candidate excepted.
    """

    def __init__(
        self,
        model: LoadedModel,
        placement: Placement = CPU,
        *,
        max_batch_tokens: int = 8192,
        max_candidate_tokens: int | None = None,
    ) -> None:
        scorer = prepare(model.scorer, device=placement.device, dtype=placement.dtype)
        self._set_up(scorer, TextEncoder(model.tokenizer, model.scorer, max_candidate_tokens), max_batch_tokens)

    @classmethod
    def as_it_is(cls, texts: TextEncoder, *, max_batch_tokens: int = 8192) -> Self:
        """Of a scorer that is being trained, and stays so: nothing of it is changed."""
        self = cls.__new__(cls)
        self._set_up(PreparedScorer.in_training(texts.scorer), texts, max_batch_tokens)
        return self

    def _set_up(self, scorer: PreparedScorer, texts: TextEncoder, max_batch_tokens: int) -> None:
        self._scorer, self._texts = scorer, texts
        self._max_batch_tokens = max_batch_tokens
        self._representations: dict[str, Tensor] = {}

    def score(self, questions: Iterable[Question]) -> Iterator[list[float]]:
        """Raw scores of each question's candidates, in the order given."""
        waiting: list[_Asked] = []
        rows = 0.0
        for question in questions:
            waiting.append(self._ask(question))
            rows += waiting[-1].rows
            if rows >= self._max_batch_tokens:
                yield from self._score_all(waiting)
                waiting, rows = [], 0.0
        yield from self._score_all(waiting)

    def forget(self) -> None:
        """Drops the representations."""
        self._representations.clear()

    @torch.inference_mode()
    def encode(self, candidates: Iterable[str]) -> int:
        """Fills in the representations that are missing; returns how many token ids it took."""
        missing = sorted({text for text in candidates if text not in self._representations}, key=len)
        pieces = self._texts.pieces(missing)
        tokens = [ids for ids, _ in self._texts.candidates(pieces, query_tokens=0)]
        for part in runs_within([len(ids) for ids in tokens], self._max_batch_tokens):
            found = self._scorer.encode_candidates(Ragged.from_token_ids(tokens[part]))
            for index, text in enumerate(missing[part]):
                self._representations[text] = found[index].cpu().clone()
        return sum(map(len, tokens))

    def _ask(self, question: Question) -> "_Asked":
        query, _ = self._texts.query(question.query)
        candidates: list[Tensor]
        encoded = 0
        if self._texts.scorer.precomputes:
            encoded = self.encode(question.candidates)
            candidates = [self._representations[text] for text in question.candidates]
        else:
            pieces = self._texts.pieces(question.candidates)
            applied = self._texts.candidates(pieces, query_tokens=len(query))
            candidates = [torch.tensor(ids) for ids, _ in applied]
        costs = [self._texts.scorer.num_rows(len(query), len(candidate)) for candidate in candidates]
        return _Asked(query, candidates, costs, [0.0] * len(candidates), len(query) + sum(costs) + encoded)

    @torch.inference_mode()
    def _score_all(self, asked: Sequence["_Asked"]) -> Iterator[list[float]]:
        pairs = [(one, index) for one in asked for index in range(len(one.candidates))]
        for part in runs_within([one.costs[index] for one, index in pairs], self._max_batch_tokens):
            groups = [(one, [index for _, index in run]) for one, run in groupby(pairs[part], itemgetter(0))]
            batch = ScoreBatch(
                Ragged.from_token_ids([one.query for one, _ in groups]),
                Ragged.from_tensors([one.candidates[index] for one, index in pairs[part]]),
                offsets([len(indices) for _, indices in groups]),
            )
            found = self._scorer.score(batch).tolist()
            for (one, index), score in zip(pairs[part], found, strict=True):
                one.scores[index] = score
        return iter([one.scores for one in asked])


@dataclass(eq=False)
class _Asked:
    query: list[int]
    candidates: list[Tensor]  # representations
    costs: list[float]  # of each, in rows of the encoder
    scores: list[float]
    rows: float  # what it takes in all, so that a bar moves while candidates are encoded
