"""The kinds of work of the scoring thread: encoding candidates, and scoring them with or without their passages."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
import torch

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.tasks import Candidates, Payload, Result, TaskSlice
from bandrank.errors import ScoringFailed
from bandrank.models.batch import ScoreBatch
from bandrank.models.ids import RaggedIds, unpack_ids
from bandrank.models.prepared import PreparedScorer
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets

ToRagged = Callable[[Sequence[Candidates]], Ragged]  # joins several runs of candidates
ScoredPassage = tuple[float, int]  # a candidate's raw score, and the index of the passage that has it


class EncodeLane:
    """Turns token ids of candidates, or of queries, into payloads of their representations."""

    overlaps = False  # the codec waits for the device, to check that all numbers are finite

    def __init__(
        self, name: str, scorer: PreparedScorer, codec: RepresentationCodec, *, of_queries: bool = False
    ) -> None:
        """of_queries: whether to encode by the scorer's encoder for queries."""
        self.name = name
        self.row_cost = scorer.scorer.row_cost
        self._encode = scorer.encode_queries if of_queries else scorer.encode_candidates
        self._codec = codec

    def wait_for_room(self) -> None:
        """Returns at once: `begin` has waited for the batch."""

    def begin(
        self, slices: Sequence[TaskSlice[RaggedIds, Payload]]
    ) -> Callable[[], list[Sequence[Payload] | Exception]]:
        tokens = Ragged.from_ids([part.candidates for part in slices])
        encoded = self._encode(tokens)
        payloads = self._codec.payloads(encoded)
        ends = offsets([len(part) for part in slices])
        return lambda: [payloads[start:end] for start, end in pairwise(ends)]


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

    def wait_for_room(self) -> None:
        self.scorer.wait_for_room()

    def begin(self, slices: Sequence[TaskSlice[Candidates, float]]) -> Callable[[], list[Sequence[float] | Exception]]:
        batch, order = collate(slices, self.to_ragged)
        scores = self.scorer.begin(batch)
        return lambda: _by_slice(scores().numpy(), slices, order, self.not_finite)

    @property
    def not_finite(self) -> str:
        """What is wrong if a score is not finite."""
        wrong = "the model gave a score that is not a number"
        if self.scorer.dtype == torch.float16:
            return f"{wrong}: its states may be too large for float16; serve it in bfloat16 or float32"
        return wrong


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

    def wait_for_room(self) -> None:
        self._scores.wait_for_room()

    def begin(
        self, slices: Sequence[TaskSlice[Candidates, ScoredPassage]]
    ) -> Callable[[], list[Sequence[ScoredPassage] | Exception]]:
        batch, order = collate(slices, self._scores.to_ragged)
        arriving = self._scores.scorer.begin_passages(batch)

        def results() -> list[Sequence[ScoredPassage] | Exception]:
            scored, which = (each.numpy() for each in arriving())
            return [
                part if isinstance(part, Exception) else [*zip(part, indices.tolist(), strict=True)]
                for part, indices in zip(
                    _by_slice(scored, slices, order, self._scores.not_finite), _cut(which, slices, order), strict=True
                )
            ]

        return results


def _by_slice(
    scores: npt.NDArray[np.float32],
    slices: Sequence[TaskSlice[Candidates, Result]],
    order: Sequence[int],
    not_finite: str,
) -> list[Sequence[float] | Exception]:
    """The scores of each slice, or its error; the batch has the slices in `order`.

    not_finite: the message about a score that is not a number.
    """
    return [
        part.tolist() if np.isfinite(part).all() else ScoringFailed(not_finite) for part in _cut(scores, slices, order)
    ]


def _cut(
    values: npt.NDArray[Any], slices: Sequence[TaskSlice[Candidates, Result]], order: Sequence[int]
) -> list[npt.NDArray[Any]]:
    """The values of each slice; the batch has the slices in `order`."""
    parts = [values[:0]] * len(slices)
    start = 0
    for index in order:
        parts[index] = values[start : start + len(slices[index])]
        start += len(parts[index])
    return parts


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
