"""The two kinds of work of the scoring thread: encoding candidates, and scoring them for queries."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Generic

import numpy as np
import numpy.typing as npt

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.tasks import Candidate, Payload, TaskSlice, TokenIds
from bandrank.errors import ScoringFailed
from bandrank.models.batch import ScoreBatch
from bandrank.models.prepared import PreparedScorer
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets
from bandrank_kernels.transfer import to_host

ToRagged = Callable[[Sequence[Candidate]], Ragged]
NOT_FINITE = (
    "the model gave a score that is not a number; where float16 overflows in a model, set BANDRANK_DTYPE=bfloat16"
)


class EncodeLane:
    """Turns token ids of candidates into payloads of their representations."""

    overlaps = False  # the codec waits for the device, to see that all numbers are finite

    def __init__(self, name: str, scorer: PreparedScorer, codec: RepresentationCodec) -> None:
        self.name = name
        self.row_cost = scorer.scorer.row_cost
        self._scorer = scorer
        self._codec = codec

    def begin(
        self, slices: Sequence[TaskSlice[TokenIds, Payload]]
    ) -> Callable[[], list[Sequence[Payload] | Exception]]:
        tokens = Ragged.from_token_ids([candidate for part in slices for candidate in part.candidates])
        encoded = self._scorer.encode_candidates(tokens)
        payloads = self._codec.payloads(encoded.values, encoded.cu_seqlens)
        ends = offsets([len(part) for part in slices])
        return lambda: [payloads[start:end] for start, end in pairwise(ends)]


class ScoreLane(Generic[Candidate]):
    """Turns candidates, which `to_ragged` reads, into raw scores for their query."""

    def __init__(self, name: str, scorer: PreparedScorer, to_ragged: ToRagged[Candidate]) -> None:
        self.name = name
        self.row_cost = scorer.scorer.row_cost
        self._scorer = scorer
        self._to_ragged = to_ragged

    @property
    def overlaps(self) -> bool:
        """True on a GPU, except for stored representations, which are not copied from pinned memory."""
        return self._scorer.device.type == "cuda" and not self._scorer.scorer.precomputes

    def begin(self, slices: Sequence[TaskSlice[Candidate, float]]) -> Callable[[], list[Sequence[float] | Exception]]:
        batch, order = collate(slices, self._to_ragged)
        scores = to_host(self._scorer.score(batch).float())
        return lambda: _by_slice(scores().numpy(), slices, order)


def _by_slice(
    scores: npt.NDArray[np.float32], slices: Sequence[TaskSlice[Candidate, float]], order: Sequence[int]
) -> list[Sequence[float] | Exception]:
    """The scores of a batch by slice, or a slice's error; the batch has the slices in `order`."""
    results: list[Sequence[float] | Exception] = [()] * len(slices)
    start = 0
    for index in order:
        part = scores[start : start + len(slices[index])]
        start += len(part)
        finite = bool(np.isfinite(part).all())
        results[index] = part.tolist() if finite else ScoringFailed(NOT_FINITE)
    return results


def collate(
    slices: Sequence[TaskSlice[Candidate, float]], to_ragged: ToRagged[Candidate]
) -> tuple[ScoreBatch, list[int]]:
    """A batch of slices, and the indices of the slices in the order in which the batch has their candidates.

    Slices with the same query, whether from one request or several, are adjacent and share it.
    """
    by_query: dict[tuple[int, ...], list[int]] = {}
    for index, part in enumerate(slices):
        by_query.setdefault(tuple(part.task.query), []).append(index)
    order = [index for group in by_query.values() for index in group]
    batch = ScoreBatch(
        queries=Ragged.from_token_ids(list(by_query)),
        candidates=to_ragged([candidate for index in order for candidate in slices[index].candidates]),
        cu_candidates=offsets([sum(len(slices[index]) for index in group) for group in by_query.values()]),
    )
    return batch, order
