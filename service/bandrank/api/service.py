"""What the endpoints share: the engine, its models, and whether they are able to answer."""

import asyncio
import logging
import os
import time

import torch

from bandrank import __version__
from bandrank.api.limits import Limits
from bandrank.engine.batching import STOPPING
from bandrank.errors import BandrankError
from bandrank.serving import Serving

log = logging.getLogger(__name__)

FRESH_S = 10.0  # a batch that succeeded this recently proves as much as a self-test
SELF_TEST_TIMEOUT_S = 10.0
LAST_WORDS_S = 3.0


class Service:
    """The served models. Made before the server listens, closed after it has answered its last request."""

    def __init__(self, serving: Serving, limits: Limits) -> None:
        self.engine, self.models, self.registry = serving.engine, serving.models, serving.registry
        self.limits = limits
        self.metrics = self.engine.metrics
        self.created = int(time.time())
        for model in self.models.by_name.values():
            dtype = str(model.dtype).removeprefix("torch.")
            self.metrics.build_info.labels(__version__, model.name, str(self.engine.device), dtype).set(1)
        if self.engine.device.type == "cuda":
            self.metrics.watch_device(self._device_memory)

    async def start(self) -> None:
        """Warms up: the first batch of a process is slow, and a model that cannot score must not start to serve."""
        await self._self_test()
        self.metrics.ready.set(1)

    async def why_not_ready(self) -> str | None:
        """None if requests are answered, else the reason, from a real self-test if no batch was scored of late."""
        if (reason := self.why_not_alive()) is not None:
            pass
        elif not self.engine.worker.alive:
            reason = STOPPING
        elif not self.engine.scored_within(FRESH_S):
            try:
                await asyncio.wait_for(self._self_test(), SELF_TEST_TIMEOUT_S)
            except TimeoutError:
                reason = f"the self-test took longer than {SELF_TEST_TIMEOUT_S:.0f} s"
            except BandrankError as error:
                reason = f"the self-test failed: {error}"
        self.metrics.ready.set(reason is None)
        return reason

    def why_not_alive(self) -> str | None:
        """None if the process can go on, else why it has to be restarted."""
        if self.engine.worker.died:
            return "the scoring thread is dead; restart the service"
        if self.engine.hung:
            return f"the scoring thread has hung for {self.engine.worker.stuck_s:.0f} s; restart the service"
        return None

    async def watch(self) -> None:
        """Ends the process if the scoring thread hangs: no request could be answered any more, and no thread can be
        stopped from outside.
        """
        while not self.engine.hung:  # noqa: ASYNC110  # a thread that hangs sets no event
            await asyncio.sleep(1.0)
        self.metrics.ready.set(0)
        log.critical("%s", self.why_not_alive())
        await asyncio.sleep(LAST_WORDS_S)  # for probes, which say so too
        os._exit(1)

    async def close(self) -> None:
        """Answers what is admitted, then ends the threads."""
        self.metrics.ready.set(0)
        await self.engine.close()

    async def _self_test(self) -> None:
        for model in self.models.by_name.values():
            await model.self_test()

    def _device_memory(self) -> dict[str, int]:
        device = self.engine.device
        return {
            "allocated": torch.cuda.memory_allocated(device),
            "peak": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "graphs": sum(scorer.prepared.graph_bytes for scorer in self.engine.text_scorers),
            "total": torch.cuda.get_device_properties(device).total_memory,
        }
