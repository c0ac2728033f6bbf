"""The limit on the rows of a batch falls when memory runs out and recovers later."""

from itertools import pairwise

import pytest
import torch
from support.scorers import Recorder, WatchedScorer, lookup
from support.serving import ranked, served
from support.torch_threads import torch_threads

from bandrank.engine.batch_limit import GROW_AFTER, LEAST_ROWS, BatchLimit
from bandrank.engine.engine import Engine
from bandrank.models.batch import ScoreBatch
from bandrank.settings import Settings


@pytest.mark.parametrize(("threads", "rows"), [(1, 1024), (2, 2048), (8, 4096)])
def test_few_threads_get_fewer_rows(threads: int, rows: int) -> None:
    """A request beside a large one waits for its batches."""
    with torch_threads(threads):
        assert Engine(torch.device("cpu")).worker.max_batch_rows == rows


def test_a_limit_is_halved_down_to_a_least_and_recovers() -> None:
    """The limit recovers in steps, and only after batches that filled at least half of it."""
    limit = BatchLimit(1000)
    for expected in (500, LEAST_ROWS, LEAST_ROWS):
        limit.fail(300)
        assert limit.rows == expected
    for _ in range(10 * GROW_AFTER):
        limit.succeed(100)
    assert limit.rows == LEAST_ROWS
    seen = []
    for _ in range(10 * GROW_AFTER):
        limit.succeed(limit.rows)
        seen.append(limit.rows)
    assert [*dict.fromkeys(seen)] == [256, 512, 1000]
    assert seen.count(512) == GROW_AFTER


def test_attempts_become_rare_where_memory_is_short_for_good() -> None:
    """Each failed attempt to grow doubles the number of batches before the next attempt."""
    limit = BatchLimit(1000)
    limit.fail(1000)
    attempts = []
    for number in range(100 * GROW_AFTER):
        limit.succeed(limit.rows)
        if limit.rows > 500:
            attempts.append(number)
            limit.fail(1000)

    assert len(attempts) == 6
    gaps = [after - before for before, after in pairwise(attempts)]
    assert gaps == [GROW_AFTER * 2**power for power in range(1, 6)]


def test_a_limit_below_the_least_is_not_halved() -> None:
    limit = BatchLimit(100)
    limit.fail(100)
    assert limit.rows == 100


async def test_batches_of_a_service_grow_again_once_there_is_memory() -> None:
    """Memory is short for the first three batches only, and every request is answered."""
    recorder = Recorder()

    def choke(batch: ScoreBatch) -> None:
        recorder(batch)
        if len(recorder.batches) < 4:
            raise torch.OutOfMemoryError("too large")

    texts = ["man", *(f"she {number}" for number in range(400))]
    settings = Settings(device="cpu", max_batch_rows=2000)
    async with served(WatchedScorer(lookup(man=1.0), choke), settings=settings) as model:
        limits = []
        for _ in range(100):
            assert ranked(await model.rank("who", texts))[0] == (0, 1.0)
            limits.append(model.engine.worker.max_batch_rows)

    assert limits[0] < 1000
    assert limits == sorted(limits)
    assert limits[-1] == 2000
