"""What the scoring thread computes: representations of candidates, or their scores for a query."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.tasks import TaskSlice
from bandrank.errors import ScoringFailed
from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged, offsets
from bandrank.models.scorer import Scorer

ToRagged = Callable[[Sequence[Any]], Ragged]


class EncodeLane:
    """Token ids of candidates to payloads of their representations."""

    def __init__(self, name: str, scorer: Scorer, codec: RepresentationCodec) -> None:
        self.name = name
        self._scorer = scorer
        self._codec = codec

    def run(self, slices: Sequence[TaskSlice]) -> list[list[Any] | Exception]:
        tokens = Ragged.from_token_ids([candidate for part in slices for candidate in part.candidates])
        encoded = self._scorer.encode_candidates(tokens)
        payloads = self._codec.payloads(encoded.values, encoded.cu_seqlens)
        ends = offsets([part.stop - part.start for part in slices])
        return [payloads[begin:end] for begin, end in pairwise(ends)]


class ScoreLane:
    """Candidates, as `to_ragged` reads them, to raw scores for their query."""

    def __init__(self, name: str, scorer: Scorer, to_ragged: ToRagged) -> None:
        self.name = name
        self._scorer = scorer
        self._to_ragged = to_ragged

    def run(self, slices: Sequence[TaskSlice]) -> list[list[Any] | Exception]:
        batch, order = collate(slices, self._to_ragged)
        scores = self._scorer.score(batch).float().cpu().numpy()
        results: list[list[Any] | Exception] = [[] for _ in slices]
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
