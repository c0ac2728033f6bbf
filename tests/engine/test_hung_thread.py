"""When the scoring thread hangs or dies, every waiting request gets an error instead of waiting for ever."""

import asyncio
import time

import pytest
from support.app import running_app
from support.scorers import Gate, WatchedScorer, lookup
from support.serving import files_of
from support.working import Dies

from bandrank.api import service
from bandrank.errors import DeadlineExceeded, ScoringFailed
from bandrank.serving import assemble
from bandrank.settings import Settings


async def test_a_thread_that_hangs_is_noticed_and_left_behind() -> None:
    """The engine closes without the hung thread, and a request that waits for it ends at its own deadline."""
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
    serving = assemble([files_of(lookup())], Settings(device="cpu", hang_timeout_s=0.05))
    await serving.models.default.rank("who", ["man"])
    await asyncio.sleep(0.2)

    assert (serving.models.default.engine.hung, serving.models.default.engine.worker.stuck_s) == (False, 0.0)
    await serving.models.default.engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_dies_between_batches_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread dies after it has taken a batch, but before it counts that batch as in flight."""
    serving = assemble([files_of(lookup())], Settings(device="cpu"))
    worker = serving.models.default.engine.worker

    def dies(_: int) -> None:
        raise Dies

    monkeypatch.setattr(worker, "_finish_all_but", dies)
    with pytest.raises(ScoringFailed, match="died"):
        async with asyncio.timeout(10):
            await serving.models.default.rank("who", ["man"])
    await serving.models.default.engine.close()


async def test_a_process_that_was_paused_has_not_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads of a paused process stand still, so the scoring thread gets its whole timeout again."""
    gate, told = Gate(), list[str]()
    gate.let_through()
    monkeypatch.setattr(service, "LOOK_S", 0.01)
    monkeypatch.setattr(service, "PAUSED_S", 0.2)
    settings = Settings(device="cpu", hang_timeout_s=0.5)
    async with running_app(WatchedScorer(lookup(), gate), settings=settings) as running:
        worker = running.service.models.default.engine.worker
        monkeypatch.setattr(worker, "abandon", told.append)
        await asyncio.to_thread(gate.wait_for_batch)
        asked = asyncio.ensure_future(running.rerank({"query": "who", "candidates": ["man"]}))
        await asyncio.to_thread(gate.wait_for_batch)
        time.sleep(0.6)  # noqa: ASYNC251  # keeps the watch from running, as a pause does
        await asyncio.sleep(0.05)
        assert (told, running.service.why_not_alive()) == ([], None)
        gate.let_through()
        assert (await asked).status_code == 200
