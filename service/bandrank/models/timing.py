"""Times a scorer in several dtypes on this machine."""

import copy
import time
from collections.abc import Sequence

import numpy as np
import torch

from bandrank.models.batch import ScoreBatch
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.models.sample import sample_request
from bandrank.models.scorer import Scorer

ROUNDS = 4


def seconds_by_dtype(scorer: Scorer, device: torch.device, dtypes: Sequence[torch.dtype]) -> dict[torch.dtype, float]:
    """The seconds that a scorer takes for a small request, by dtype: the best of several rounds, in which dtypes take
    turns.

    The scorer itself is not changed. Meanwhile a copy in each dtype takes memory.
    Raises ValueError for a dtype in which it cannot compute here.
    """
    prepared = [prepare(copy.deepcopy(scorer), device=device, dtype=dtype) for dtype in dtypes]
    batch = sample_request(scorer)
    with torch.inference_mode():
        for each in prepared:
            each(batch)
        rounds = [[_seconds(each, batch) for each in prepared] for _ in range(ROUNDS)]
    return dict(zip(dtypes, np.min(rounds, 0).tolist(), strict=True))


def _seconds(prepared: PreparedScorer, batch: ScoreBatch) -> float:
    begin = time.perf_counter()
    prepared(batch)
    return time.perf_counter() - begin
