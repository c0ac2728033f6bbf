"""Which dtype a scorer is fastest in, on this machine."""

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


def measure(scorer: Scorer, device: torch.device, dtypes: Sequence[torch.dtype]) -> dict[torch.dtype, float]:
    """The seconds in which a scorer answers a small request, by dtype: the best of some rounds in turn.

    The scorer itself is not changed. Memory for a copy in each dtype is needed meanwhile.
    Raises ValueError for a dtype that it cannot compute in here.
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
