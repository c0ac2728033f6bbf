"""The device, the queue, the scoring thread and the Redis that all served models share."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import torch

from bandrank.engine.cache.redis_client import RedisClient
from bandrank.engine.task_queue import STOPPING, TaskQueue
from bandrank.engine.text_scorer import AnyTextScorer
from bandrank.engine.worker import ScoringWorker
from bandrank.errors import NotReady
from bandrank.metrics import Metrics

log = logging.getLogger(__name__)

# Hidden states of 384 float32 numbers a row take 6 MB, which stay in a last-level cache. Few threads take long for as
# many, and a request waits for up to two batches ahead of it. 4096 rows a thread are 0.4% faster (EPYC, int8).
CPU_BATCH_ROWS, THREAD_ROWS = 4096, 1024
GPU_BATCH_ROWS = 32768
LOOK_S = 1.0  # between two checks of a thread that may hang


class Engine:
    """Runs the text scorers that are added to it until it is closed. Used from one event loop.

    max_batch_rows: rows scored at once; None picks them by the device.  max_waiting_rows: rows that may be
    queued.  patience: how long a request may wait, in multiples of its own work.  request_timeout_s: seconds after
    which a request fails; one that would queue for longer is refused.  hang_timeout_s: a batch that takes longer has
    hung the scoring thread.
    redis: closed with the engine.  clock: monotonic seconds.  on_death: called from the scoring thread if it dies.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        max_batch_rows: int | None = None,
        max_waiting_rows: float = 2_000_000,
        patience: float = math.inf,
        request_timeout_s: float = 60.0,
        hang_timeout_s: float = 120.0,
        redis: RedisClient | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.device = device
        self.redis = redis
        self.metrics = metrics or Metrics()
        self.clock = clock
        self.request_timeout_s = request_timeout_s
        self.hang_timeout_s = hang_timeout_s
        self.text_scorers: list[AnyTextScorer] = []
        full = at_once = GPU_BATCH_ROWS
        if device.type == "cpu":
            full, at_once = CPU_BATCH_ROWS, min(CPU_BATCH_ROWS, THREAD_ROWS * torch.get_num_threads())
        self.queue = TaskQueue(
            max_batch_rows=max_batch_rows or full,
            patience=patience,
            max_waiting_rows=max_waiting_rows,
            max_wait_s=request_timeout_s,
            clock=clock,
            on_drop=lambda reason: self.metrics.dropped_tasks.labels(reason).inc(),
        )
        self.metrics.waiting_tokens.set_function(lambda: self.queue.waiting_rows)
        self.metrics.waiting_tasks.set_function(lambda: self.queue.waiting_tasks)
        self.worker = ScoringWorker(
            self.queue,
            max_batch_rows=max_batch_rows or at_once,
            metrics=self.metrics,
            device=device,
            on_death=on_death,
        )
        self.running_since = -math.inf  # in monotonic seconds: the end of the latest pause of the process
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._closing = False

    def start(self) -> None:
        """Starts the scoring thread."""
        self.worker.start()

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Keeps the engine open until the block ends. Raises NotReady once it is closing."""
        if self._closing:
            raise NotReady(STOPPING)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._idle.set()

    def scored_within(self, seconds: float) -> bool:
        """Whether a batch was scored in the last `seconds`."""
        return self.clock() - self.worker.last_success <= seconds

    @property
    def hung(self) -> bool:
        """Whether the scoring thread has made no progress for longer than a batch may take, while the process ran."""
        return min(self.worker.stuck_s, self.clock() - self.running_since) > self.hang_timeout_s

    async def close(self) -> None:
        """Admits no more requests; returns when those admitted are answered and their representations are stored.

        A scoring thread that has hung is left behind.
        """
        self._closing = True
        while self._in_flight and self.worker.alive and not self.hung:  # a request may have more stages to run
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), LOOK_S)
        self.queue.close()
        while not await asyncio.to_thread(self.worker.join, LOOK_S):
            if self.hung:
                log.critical("the scoring thread hangs and is left behind")
                break
        for scorer in self.text_scorers:
            await scorer.close()
        if self.redis is not None:
            await self.redis.close()
