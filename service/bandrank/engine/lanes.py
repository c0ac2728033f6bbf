"""What the scoring thread computes: representations of candidates, or their scores for a query."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.tasks import Results, TaskSlice
from bandrank.errors import ScoringFailed
from bandrank.models.batch import ScoreBatch
from bandrank.models.prepared import PreparedScorer
from bandrank.models.ragged import Ragged, offsets
from bandrank_kernels.transfer import to_host

ToRagged = Callable[[Sequence[Any]], Ragged]


class EncodeLane:
    """Token ids of candidates to payloads of their representations."""

    overlaps = False  # the codec waits for the device, to see that all numbers are finite

    def __init__(self, name: str, scorer: PreparedScorer, codec: RepresentationCodec) -> None:
        self.name = name
        self._scorer = scorer
        self._codec = codec

    def begin(self, slices: Sequence[TaskSlice]) -> Callable[[], list[Results]]:
        tokens = Ragged.from_token_ids([candidate for part in slices for candidate in part.candidates])
        encoded = self._scorer.encode_candidates(tokens)
        payloads = self._codec.payloads(encoded.values, encoded.cu_seqlens)
        ends = offsets([part.stop - part.start for part in slices])
        results: list[Results] = [payloads[begin:end] for begin, end in pairwise(ends)]
        return lambda: results


class ScoreLane:
    """Candidates, as `to_ragged` reads them, to raw scores for their query."""

    def __init__(self, name: str, scorer: PreparedScorer, to_ragged: ToRagged) -> None:
        self.name = name
        self._scorer = scorer
        self._to_ragged = to_ragged

    @property
    def overlaps(self) -> bool:
        """On a GPU, unless stored representations go there, which are not in pinned memory."""
        return self._scorer.device.type == "cuda" and not self._scorer.scorer.precomputes

    def begin(self, slices: Sequence[TaskSlice]) -> Callable[[], list[Results]]:
        batch, order = collate(slices, self._to_ragged)
        scores = to_host(self._scorer.score(batch).float())
        return lambda: _by_slice(scores().numpy(), slices, order)


def _by_slice(scores: npt.NDArray[np.float32], slices: Sequence[TaskSlice], order: Sequence[int]) -> list[Results]:
    """Scores of a batch, given back to its slices, which lie in it in this order."""
    results: list[Results] = [[] for _ in slices]
    place = 0
    for index in order:
        own = scores[place : place + slices[index].stop - slices[index].start]
        place += len(own)
        finite = bool(np.isfinite(own).all())
        results[index] = own.tolist() if finite else ScoringFailed("the model gave a score that is not a number")
    return results


def collate(slices: Sequence[TaskSlice], to_ragged: ToRagged) -> tuple[ScoreBatch, list[int]]:
    """One batch of the slices, and the places of the slices in the order in which their candidates lie in it.

    Slices with the same query, from whichever requests, lie side by side and share it.
    """
    by_query: dict[tuple[int, ...], list[int]] = {}
    for index, part in enumerate(slices):
        by_query.setdefault(tuple(part.task.query), []).append(index)
    order = [index for group in by_query.values() for index in group]
    batch = ScoreBatch(
        queries=Ragged.from_token_ids(list(by_query)),
        candidates=to_ragged([candidate for index in order for candidate in slices[index].candidates]),
        cu_candidates=offsets([sum(slices[i].stop - slices[i].start for i in group) for group in by_query.values()]),
    )
    return batch, order
