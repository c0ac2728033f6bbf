"""What the endpoints share: the engine, its models, and whether they can answer."""

import asyncio
import logging
import time
from typing import Annotated

import torch
from fastapi import Depends, Request

from bandrank import __version__
from bandrank.errors import BandrankError
from bandrank.serving import Serving
from bandrank.settings import Settings

log = logging.getLogger(__name__)

FRESH_S = 10.0  # a batch that succeeded this recently proves as much as a self-test
SELF_TEST_TIMEOUT_S = 10.0


class Service:
    """The served models; made before the server listens, closed after it has answered its last request."""

    def __init__(self, serving: Serving, settings: Settings) -> None:
        self.engine, self.models, self.registry = serving.engine, serving.models, serving.registry
        self.max_body_bytes, self.max_candidates = settings.max_body_bytes, settings.max_candidates
        self.metrics = self.engine.metrics
        self.created = int(time.time())
        for model in self.models.by_name.values():
            dtype = str(model.dtype).removeprefix("torch.")
            self.metrics.build_info.labels(__version__, model.name, str(self.engine.device), dtype).set(1)
        if (device := self.engine.device).type == "cuda":
            self.metrics.watch_device(
                {
                    "allocated": lambda: torch.cuda.memory_allocated(device),
                    "peak": lambda: torch.cuda.max_memory_allocated(device),
                    "reserved": lambda: torch.cuda.memory_reserved(device),
                    "graphs": lambda: sum(scorer.prepared.graph_bytes for scorer in self.engine.text_scorers),
                    "total": lambda: torch.cuda.get_device_properties(device).total_memory,
                }
            )

    async def start(self) -> None:
        """Scores a first batch, which is slow. Raises what scoring raises: a model that cannot score must not start."""
        await self._self_test()
        self.metrics.ready.set(1)

    async def why_not_ready(self) -> str | None:
        """None if the service can score, else the reason. Runs a self-test unless a batch was scored within FRESH_S."""
        reason = None
        if not self.engine.worker.alive:
            reason = "the scoring thread is dead; restart the service"
        elif not self.engine.scored_within(FRESH_S):
            try:
                await asyncio.wait_for(self._self_test(), SELF_TEST_TIMEOUT_S)
            except TimeoutError:
                reason = f"the self-test took longer than {SELF_TEST_TIMEOUT_S:.0f} s"
            except BandrankError as error:
                reason = f"the self-test failed: {error}"
        self.metrics.ready.set(reason is None)
        return reason

    async def close(self) -> None:
        """Answers the admitted requests, then ends the threads."""
        self.metrics.ready.set(0)
        await self.engine.close()

    async def _self_test(self) -> None:
        for model in self.models.by_name.values():
            await model.self_test()


async def _service(request: Request) -> Service:  # async, because FastAPI calls other functions in another thread
    service: Service = request.app.state.service
    return service


ServiceOfApp = Annotated[Service, Depends(_service)]
