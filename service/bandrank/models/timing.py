"""Times a scorer in several dtypes on this machine."""

import copy
import math
import time
from collections.abc import Sequence

import torch

from bandrank.models.batch import ScoreBatch
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.models.sample import sample_request
from bandrank.models.scorer import Scorer

LEAST, MOST = 2, 4  # rounds; a pause of the machine makes a dtype slow in one of them
CLEARLY = 1.5  # times as fast as any other dtype: further rounds would not change which is the fastest


def seconds_by_dtype(scorer: Scorer, device: torch.device, dtypes: Sequence[torch.dtype]) -> dict[torch.dtype, float]:
    """The seconds that a scorer takes for a small request, by dtype: the best of several rounds, in which dtypes take
    turns, until one is clearly the fastest.

    The scorer itself is not changed. Meanwhile a copy in each dtype takes memory.
    Raises ValueError for a dtype in which it cannot compute here.
    """
    prepared = [prepare(copy.deepcopy(scorer), device=device, dtype=dtype) for dtype in dtypes]
    batch = sample_request(scorer)
    with torch.inference_mode():
        for each in prepared:
            each(batch)
        best = [math.inf] * len(prepared)
        for taken in range(1, MOST + 1):
            best = [min(seconds, _seconds(each, batch)) for seconds, each in zip(best, prepared, strict=True)]
            first, second = sorted(best)[:2]
            if taken >= LEAST and second > CLEARLY * first:
                break
    return dict(zip(dtypes, best, strict=True))


def _seconds(prepared: PreparedScorer, batch: ScoreBatch) -> float:
    begin = time.perf_counter()
    prepared(batch)
    return time.perf_counter() - begin
