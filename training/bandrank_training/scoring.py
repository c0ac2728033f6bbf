"""A scorer over many queries and their candidates, offline: the same scores as the service gives, without it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.loading import LoadedModel
from bandrank.models.ragged import Ragged, offsets
from bandrank.models.texts import TextEncoder


@dataclass(frozen=True)
class Question:
    """A query and what to score for it."""

    query: str
    candidates: Sequence[str]


class OfflineScorer:
    """Scores pools. Candidates of a scorer that precomputes are encoded once, however many queries share them, and
    their representations are kept: `forget()` frees them.

    max_batch_tokens: token ids that go through the encoder at once, a longer candidate excepted.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        max_batch_tokens: int = 8192,
    ) -> None:
        self.scorer = model.scorer.prepare(device=torch.device(device), dtype=dtype)
        self._texts = TextEncoder(model.tokenizer, self.scorer)
        self._max_batch_tokens = max_batch_tokens
        self._representations: dict[str, Tensor] = {}

    def score(self, questions: Iterable[Question]) -> Iterator[list[float]]:
        """Raw scores of each question's candidates, in the order given."""
        for question in questions:
            yield self._score_one(question) if question.candidates else []

    def forget(self) -> None:
        """Drops the representations."""
        self._representations.clear()

    @torch.inference_mode()
    def encode(self, candidates: Iterable[str]) -> None:
        """Fills in the representations that are missing."""
        missing = sorted({text for text in candidates if text not in self._representations}, key=len)
        pieces = self._texts.pieces(missing)
        tokens = [ids for ids, _ in self._texts.candidates(pieces, query_tokens=0)]
        for part in _within(self._max_batch_tokens, [len(ids) for ids in tokens]):
            found = self.scorer.encode_candidates(Ragged.from_token_ids(tokens[part]))
            for index, text in enumerate(missing[part]):
                self._representations[text] = found[index].cpu().clone()

    @torch.inference_mode()
    def _score_one(self, question: Question) -> list[float]:
        query, _ = self._texts.query(question.query)
        scores = torch.empty(len(question.candidates))
        if self.scorer.precomputes:
            self.encode(question.candidates)
            parts = [list(range(len(question.candidates)))]
            rows = [self._representations[text] for text in question.candidates]
            batches = [Ragged.from_tensors(rows)]
        else:
            pieces = self._texts.pieces(question.candidates)
            tokens = [ids for ids, _ in self._texts.candidates(pieces, query_tokens=len(query))]
            order = sorted(range(len(tokens)), key=lambda index: len(tokens[index]))
            parts = [order[part] for part in _within(self._max_batch_tokens, [len(tokens[index]) for index in order])]
            batches = [Ragged.from_token_ids([tokens[index] for index in part]) for part in parts]
        for part, candidates in zip(parts, batches, strict=True):
            batch = ScoreBatch(Ragged.from_token_ids([query]), candidates, offsets([len(part)]))
            scores[part] = self.scorer.score(batch).float().cpu()
        return scores.tolist()


def _within(budget: int, costs: Sequence[int]) -> list[slice]:
    """Consecutive runs whose costs add up to `budget` at most, each of at least one item."""
    runs, begin, spent = [], 0, 0
    for index, cost in enumerate(costs):
        if index > begin and spent + cost > budget:
            runs.append(slice(begin, index))
            begin, spent = index, 0
        spent += cost
    return [*runs, slice(begin, len(costs))] if len(costs) > begin else runs
