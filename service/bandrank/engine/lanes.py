"""The kinds of work of the scoring thread: encoding candidates, and scoring them with or without their passages."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.tasks import Candidates, Outcome, Outcomes, Payload, Result, TaskSlice
from bandrank.errors import ScoringFailed
from bandrank.models.arriving import Arriving
from bandrank.models.batch import ScoreBatch
from bandrank.models.ids import RaggedIds, unpack_ids
from bandrank.models.prepared import PreparedScorer
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets

ToRagged = Callable[[Sequence[Candidates]], Ragged]  # joins several runs of candidates
ScoredPassage = tuple[float, int]  # a candidate's raw score, and the index of the passage that has it
Given = TypeVar("Given")  # what a scorer gives for candidates: a tensor, or several


class EncodeLane:
    """Turns token ids of candidates, or of queries, into payloads of their representations."""

    overlaps = False  # the codec waits for the device, to check that all numbers are finite

    def __init__(
        self, name: str, scorer: PreparedScorer, codec: RepresentationCodec, *, of_queries: bool = False
    ) -> None:
        """of_queries: whether to encode by the scorer's encoder for queries."""
        self.name = name
        self.row_cost = scorer.scorer.sides[-1 if of_queries else 0].row_cost
        self._encode = scorer.encode_queries if of_queries else scorer.encode_candidates
        self._codec = codec

    def begin(self, slices: Sequence[TaskSlice[RaggedIds, Payload]]) -> Outcomes[Payload]:
        tokens = Ragged.from_ids([part.candidates for part in slices])
        encoded = self._encode(tokens)
        payloads = self._codec.payloads(encoded)
        ends = offsets([len(part) for part in slices])
        return Arriving(lambda: [payloads[start:end] for start, end in pairwise(ends)])


class ScoreLane(Generic[Candidates]):
    """Turns candidates, which `to_ragged` reads, into raw scores for their query."""

    def __init__(self, name: str, scorer: PreparedScorer, to_ragged: ToRagged[Candidates]) -> None:
        self.name = name
        self.row_cost = scorer.scorer.row_cost
        self.scorer = scorer
        self.to_ragged = to_ragged

    @property
    def overlaps(self) -> bool:
        return self.scorer.overlaps

    def begin(self, slices: Sequence[TaskSlice[Candidates, float]]) -> Outcomes[float]:
        batch, order = collate(slices, self.to_ragged)
        return _by_slice(self.scorer.begin(batch), Tensor.tolist, slices, order, self.not_finite)

    def not_finite(self) -> ScoringFailed:
        """The error of scores of which one is not finite."""
        wrong = "the model gave a score that is not a number"
        if self.scorer.dtype == torch.float16:
            wrong += ": its states may be too large for float16; serve it in bfloat16 or float32"
        return ScoringFailed(wrong)


class PassageLane(Generic[Candidates]):
    """Scores as a `ScoreLane` does, and says which passage of each candidate gave it its score.

    It is a separate lane, so that the batches of all other requests are scored as before. It has the same name because
    it has the same speed.
    """

    def __init__(self, scores: ScoreLane[Candidates]) -> None:
        self.name = scores.name
        self.row_cost = scores.row_cost
        self._scores = scores

    @property
    def overlaps(self) -> bool:
        return self._scores.overlaps

    def begin(self, slices: Sequence[TaskSlice[Candidates, ScoredPassage]]) -> Outcomes[ScoredPassage]:
        batch, order = collate(slices, self._scores.to_ragged)

        def read(scores_and_passages: Sequence[Tensor]) -> list[ScoredPassage]:
            scores, passages = scores_and_passages
            return [*zip(scores.tolist(), passages.tolist(), strict=True)]

        return _by_slice(self._scores.scorer.begin_passages(batch), read, slices, order, self._scores.not_finite)


def _by_slice(
    arriving: Arriving[tuple[slice, Given], Given],
    read: Callable[[Given], list[Result]],
    slices: Sequence[TaskSlice[Candidates, Result]],
    order: Sequence[int],
    not_finite: Callable[[], ScoringFailed],
) -> Outcomes[Result]:
    """The outcome of each slice of a batch, which has the slices in `order`.

    arriving: what a scorer gives for the candidates of the batch, early for runs of them.
    read: the results of candidates, which are numbers, from what the scorer gives.  not_finite: the error of a slice of
    which one is not finite.
    """
    lengths = [len(slices[index]) for index in order]
    rows = {index: slice(*bounds) for index, bounds in zip(order, pairwise(offsets(lengths).tolist()), strict=True)}

    def checked(results: list[Result]) -> Outcome[Result]:
        return results if np.isfinite(np.asarray(results)).all() else not_finite()

    results: dict[int, Result] = {}  # early ones, by candidate
    waiting = dict(rows)

    def early(pieces: Iterator[tuple[slice, Given]]) -> Iterator[tuple[int, Outcome[Result]]]:
        for run, given in pieces:
            results.update(zip(range(run.start, run.stop), read(given), strict=True))
            for index, part in [*waiting.items()]:
                if all(row in results for row in range(part.start, part.stop)):
                    del waiting[index]
                    yield index, checked([results.pop(row) for row in range(part.start, part.stop)])

    def outcomes(given: Given) -> list[Outcome[Result]]:
        whole = read(given)
        return [checked(whole[rows[index]]) for index in range(len(slices))]

    return arriving.read(outcomes, early)


def collate(
    slices: Sequence[TaskSlice[Candidates, Result]], to_ragged: ToRagged[Candidates]
) -> tuple[ScoreBatch, list[int]]:
    """A batch of slices, and the indices of the slices in the order of the batch.

    Slices with the same query, whether from one request or several, are adjacent and share it.
    """
    by_query: dict[bytes, list[int]] = {}
    for index, part in enumerate(slices):
        by_query.setdefault(part.task.query.tobytes(), []).append(index)
    order = [index for group in by_query.values() for index in group]
    batch = ScoreBatch(
        queries=Ragged.from_token_ids([unpack_ids(query) for query in by_query]),
        candidates=to_ragged([slices[index].candidates for index in order]),
        cu_candidates=offsets([sum(len(slices[index]) for index in group) for group in by_query.values()]),
    )
    return batch, order
