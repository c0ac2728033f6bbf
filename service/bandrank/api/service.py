"""What the endpoints share: the engine, its models, and whether they can answer."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Annotated

import torch
from fastapi import Depends, Request

from bandrank import __version__
from bandrank.api.admission import Admission
from bandrank.api.pace import Pace
from bandrank.engine.calls import Answer, Call
from bandrank.engine.clients import Client
from bandrank.engine.memory import Memory
from bandrank.engine.shadow import Shadow
from bandrank.engine.task_queue import STOPPING
from bandrank.errors import BandrankError
from bandrank.logs import request_id
from bandrank.models.placement import name_of
from bandrank.serving import Serving
from bandrank.settings import Settings

log = logging.getLogger(__name__)

FRESH_S = 10.0  # a batch that succeeded this recently proves as much as a self-test
SELF_TEST_TIMEOUT_S = 10.0
LOOK_S, PAUSED_S = 1.0, 5.0  # between two checks of a thread that may hang; a check this late means a pause
LAST_WORDS_S = 3.0


class Service:
    """What the endpoints share; made before the server listens, closed after it has answered its last request.

    any_model: whether the default model stands in for one that is not served, where a dialect allows that.
    draining: whether it was told to stop but still answers.  stopping: set when registrations have to end.
    """

    def __init__(self, serving: Serving, settings: Settings) -> None:
        """Raises BadSetting for a file of keys that cannot be used."""
        self.models, self.registry = serving.models, serving.registry
        self.max_body_bytes, self.max_candidates = settings.max_body_bytes, settings.max_candidates
        self.max_line_bytes, self.max_answer_bytes = settings.max_line_bytes, settings.max_answer_bytes
        self.any_model = settings.unknown_model == "default"
        self.engine = self.models.engine
        self.metrics = self.engine.metrics
        self.memory = Memory(settings.max_in_flight_bytes, self.metrics)
        self.admission = Admission(settings, self.metrics)
        self.pace = Pace()
        self.shadow: Shadow | None = None
        if serving.shadow is not None:
            self.shadow = Shadow(
                serving.shadow,
                strategy=settings.shadow_strategy,
                share=settings.shadow_share,
                answering=self.models.by_name,
                memory=self.memory,
                metrics=self.metrics,
            )
        self.created = int(time.time())
        self.draining = False
        self._passed = False  # the last self-test, while requests are taken
        self._testing: asyncio.Task[str | None] | None = None  # the last self-test that probes wait for
        self._said_not_ready = False
        self.stopping = asyncio.Event()
        for model in self.models.by_name.values():
            dtype = name_of(model.dtype)
            self.metrics.build_info.labels(__version__, model.name, str(self.engine.device), dtype).set(1)
        self.metrics.ready.set_function(self._is_ready)  # nobody may ask /readyz
        self.metrics.watch_device(
            {
                "allocated": lambda: self._on_card(torch.cuda.memory_allocated),
                "peak": lambda: self._on_card(torch.cuda.max_memory_allocated),
                "reserved": lambda: self._on_card(torch.cuda.memory_reserved),
                "graphs": lambda: sum(scorer.prepared.graph_bytes for scorer in self.engine.text_scorers),
                "total": lambda: self._on_card(lambda card: torch.cuda.get_device_properties(card).total_memory),
            }
        )

    async def start(self) -> None:
        """Scores a first batch, which is slow. Raises what scoring raises: a model that cannot score must not start."""
        await self._self_test()
        if self.shadow is not None:
            await self.shadow.model.self_test()
        self._passed = True

    def drain(self) -> None:
        """Makes /readyz fail from now on, while requests are still answered."""
        self.draining = True
        self._passed = False
        log.info("stopping: /readyz fails, requests are still answered")

    def stop(self) -> None:
        """Ends registrations, which may go on for hours; other requests are still answered."""
        self.stopping.set()

    async def exposition(self, client: Client) -> bytes:
        """All metrics in Prometheus' text format, written in parts, between which others get a turn."""
        parts = []
        for part in self.metrics.exposition():
            parts.append(part)
            await self.pace.turn(client)
        return b"".join(parts)

    async def why_not_ready(self) -> str | None:
        """None if the service can score, else the reason, which is logged once, however many ask for it."""
        reason = await self._why_not_ready()
        self._passed = reason is None
        if reason != STOPPING and (reason is not None) is not self._said_not_ready:
            self._said_not_ready = reason is not None
            if reason is None:
                log.warning("ready again")
            else:
                log.warning("not ready: %s", reason)
        return reason

    def why_not_alive(self) -> str | None:
        """None if the process can go on, else why it has to be restarted."""
        if self.engine.worker.died:
            return "the scoring thread is dead; restart the service"
        if self.engine.hung:
            return f"the scoring thread has hung for {self.engine.worker.stuck_s:.0f} s; restart the service"
        return None

    async def until_hung(self) -> str:
        """Waits until the scoring thread hangs; returns why the process has to be restarted.

        Time in which the whole process was paused, as by `docker pause`, does not count: the thread did not run either.
        """
        while not self.engine.hung:
            looked = time.monotonic()
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - looked > LOOK_S + PAUSED_S:
                self.engine.running_since = self.engine.clock()
        return self.why_not_alive() or "the scoring thread hung; restart the service"

    def abandon(self, reason: str) -> None:
        """Fails every request, now and later, with the reason why none is scored any more."""
        self._passed = False
        self.engine.worker.abandon(reason)

    async def watch(self) -> None:
        """Ends the process if the scoring thread hangs, since no thread can be stopped from outside.

        Until then every request is told the reason.
        """
        reason = await self.until_hung()
        log.critical("%s", reason)
        self.abandon(reason)
        last = threading.Timer(3 * LAST_WORDS_S, os._exit, (1,))  # a stop may hang as well
        last.daemon = True
        last.start()
        await asyncio.sleep(LAST_WORDS_S)  # so that probes can say so too
        self.engine.worker.on_death()

    def when_answered(self, call: Call, answer: Answer) -> None:
        """Offers a request to the shadow, if there is one, once its answer has been sent."""
        if self.shadow is not None:
            self.shadow.offer(request_id.get(), call, answer)

    async def close(self) -> None:
        """Answers the admitted requests, then ends the threads."""
        self._passed = False
        if self.shadow is not None:
            await self.shadow.close()
        await self.models.close()

    def _is_ready(self) -> bool:
        """Whether requests are taken and scored, as far as is known without a self-test."""
        return self._passed and self.why_not_alive() is None and self.engine.worker.alive

    def _on_card(self, count: Callable[[torch.device], int]) -> int:
        """A count of the GPU in use; 0 on a CPU."""
        return count(self.engine.device) if self.engine.device.type == "cuda" else 0

    async def _why_not_ready(self) -> str | None:
        """Why the service cannot score. Runs a self-test, or awaits one, unless a batch was scored within FRESH_S."""
        if (reason := self.why_not_alive()) is not None:
            return reason
        if self.draining or not self.engine.worker.alive:
            return STOPPING
        if self.engine.scored_within(FRESH_S):
            return None
        if self._testing is None or self._testing.done():
            self._testing = asyncio.create_task(self._why_test_fails())
        reason = await asyncio.shield(self._testing)  # one for all who ask, even if one of them hangs up
        return STOPPING if self.draining else reason

    async def _why_test_fails(self) -> str | None:
        """None if a self-test succeeds, else the reason."""
        try:
            await asyncio.wait_for(self._self_test(), SELF_TEST_TIMEOUT_S)
        except TimeoutError:
            return f"the self-test took longer than {SELF_TEST_TIMEOUT_S:.0f} s"
        except BandrankError as error:
            return f"the self-test failed: {error}"
        return None

    async def _self_test(self) -> None:
        for model in self.models.by_name.values():
            await model.self_test()


async def _service(request: Request) -> Service:  # async, because FastAPI calls other functions in another thread
    service: Service = request.app.state.service
    return service


ServiceOfApp = Annotated[Service, Depends(_service)]
