"""A scoring thread that hangs or dies: everybody hears of it, and nothing waits for ever."""

import asyncio

import pytest
from support.scorers import Gate, WatchedScorer, lookup
from support.serving import files_of
from support.working import Dies

from bandrank.errors import DeadlineExceeded, ScoringFailed
from bandrank.models.batch import ScoreBatch
from bandrank.serving import assemble
from bandrank.settings import Settings

pytestmark = pytest.mark.anyio


async def test_a_thread_that_hangs_is_noticed_and_left_behind() -> None:
    """The engine closes without it; what waits for it ends by its own deadline."""
    gate = Gate()
    settings = Settings(device="cpu", hang_timeout_s=0.3, request_timeout_s=0.2)
    serving = assemble([files_of(WatchedScorer(lookup(), gate))], settings)
    engine = serving.models.default.engine
    asked = asyncio.ensure_future(serving.models.default.rank("who", ["man"]))
    await asyncio.to_thread(gate.wait_for_batch)
    assert not engine.hung
    with pytest.raises(DeadlineExceeded):
        await asked
    async with asyncio.timeout(10):
        while not engine.hung:  # noqa: ASYNC110  # a thread that hangs sets no event
            await asyncio.sleep(0.02)
        await engine.close()
    gate.let_through()


async def test_a_thread_that_is_idle_does_not_hang() -> None:
    """However long it waits for work."""
    serving = assemble([files_of(lookup())], Settings(device="cpu", hang_timeout_s=0.05))
    await serving.models.default.rank("who", ["man"])
    await asyncio.sleep(0.2)

    assert (serving.models.default.engine.hung, serving.models.default.engine.worker.stuck_s) == (False, 0.0)
    await serving.models.default.engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_batch_that_was_taken_is_answered_when_the_thread_dies() -> None:
    """At once, and not by its deadline: also the batch that it had taken but not begun."""

    def dies(_: ScoreBatch) -> None:
        raise Dies

    serving = assemble([files_of(WatchedScorer(lookup(), dies))], Settings(device="cpu"))
    with pytest.raises(ScoringFailed, match="died"):
        async with asyncio.timeout(10):
            await serving.models.default.rank("who", ["man"])
    await serving.models.default.engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_dies_between_batches_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has taken a batch, and dies before that is in flight."""
    serving = assemble([files_of(lookup())], Settings(device="cpu"))
    worker = serving.models.default.engine.worker

    def dies(_: int) -> None:
        raise Dies

    monkeypatch.setattr(worker, "_finish_all_but", dies)
    with pytest.raises(ScoringFailed, match="died"):
        async with asyncio.timeout(10):
            await serving.models.default.rank("who", ["man"])
    await serving.models.default.engine.close()
