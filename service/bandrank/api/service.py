"""What the endpoints share: the engine, its settings, and whether it is able to answer."""

import asyncio
import logging
from collections.abc import Callable

import torch

from bandrank import __version__
from bandrank.engine.assembly import StageModels
from bandrank.engine.candidates import CandidateStore
from bandrank.engine.reranker import Reranker
from bandrank.errors import BandrankError
from bandrank.metrics import Metrics
from bandrank.settings import Settings

log = logging.getLogger(__name__)

FRESH_S = 10.0  # a batch that succeeded this recently proves as much as a self-test
SELF_TEST_TIMEOUT_S = 10.0


class Service:
    """The served models. Made before the server listens, closed after it has answered its last request."""

    def __init__(self, models: StageModels, settings: Settings, *, on_death: Callable[[], None] = lambda: None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.reranker = Reranker(models, settings, metrics=self.metrics, on_death=on_death)
        self.candidates = CandidateStore(self.reranker.redis, max_bytes=settings.candidate_store_bytes)
        self.model_name = models.main.name
        names = [model.name for model in models.by_stage().values()]
        self.model_names = {*names, *(name.rstrip("/").rsplit("/", 1)[-1] for name in names), "default"}
        dtype = str(self.reranker.dtype).removeprefix("torch.")
        self.metrics.build_info.labels(__version__, self.model_name, str(self.reranker.device), dtype).set(1)
        if self.reranker.device.type == "cuda":
            self.metrics.watch_device(self._device_memory)

    async def start(self) -> None:
        """Warms up: the first batch of a process is slow, and a model that cannot score must not start to serve."""
        await self.reranker.self_test()
        self.metrics.ready.set(1)

    async def why_not_ready(self) -> str | None:
        """None if requests are answered, else the reason, from a real self-test if nothing was scored of late."""
        reason = None
        if not self.reranker.worker.alive:
            reason = "the scoring thread is dead; restart the service"
        elif not self.reranker.scored_within(FRESH_S):
            try:
                await asyncio.wait_for(self.reranker.self_test(), SELF_TEST_TIMEOUT_S)
            except TimeoutError:
                reason = f"the self-test took longer than {SELF_TEST_TIMEOUT_S:.0f} s"
            except BandrankError as error:
                reason = f"the self-test failed: {error}"
        self.metrics.ready.set(reason is None)
        return reason

    async def close(self) -> None:
        """Answers what is admitted, then ends the threads."""
        self.metrics.ready.set(0)
        await self.reranker.close()

    def _device_memory(self) -> dict[str, int]:
        device = self.reranker.device
        return {
            "allocated": torch.cuda.memory_allocated(device),
            "peak": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "graphs": sum(stage.scorer.graph_bytes for stage in self.reranker.stages.values()),
            "total": torch.cuda.get_device_properties(device).total_memory,
        }
