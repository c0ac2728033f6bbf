"""A pool of threads that clients share: waiting work is bounded, and small requests pass large ones."""

import asyncio
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from bandrank.engine.clients import Client, Shares
from bandrank.engine.fair_queue import FairQueue
from bandrank.engine.task_queue import MAX_RETRY_AFTER_S, STOPPING
from bandrank.engine.throughput import Throughput
from bandrank.errors import InputTooLarge, NotReady, Overloaded, whole_seconds

LANE = "tokenize"

Result = TypeVar("Result")


class FairPool:
    """Runs requests slice by slice, as many slices at a time as it has threads.

    The client whose slices took the least time so far is next, and of its requests the one with the earliest turn. A
    turn is the size of the work that had been handed out when the request arrived, plus its own size, as in the task
    queue: nothing starves, and a small request passes large ones. Background work comes after all other work and takes
    none of its room; whoever asks for it bounds it. Used from one event loop.
    """

    def __init__(self, num_threads: int, *, max_size: float, name: str) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._free = num_threads
        self._sizes = Shares(max_size)
        self._handed_out = 0
        self._waiting = FairQueue()
        self._speed = Throughput()

    @contextmanager
    def admit(self, client: Client, size: int) -> Iterator[float]:
        """Yields the turn of a request of `size` characters, which count as waiting until the block ends.

        Raises InputTooLarge if its client could never have this much waiting, and Overloaded if it cannot now.
        """
        sizes = self._sizes
        if size > (most := sizes.most(client)):
            raise InputTooLarge(f"the texts have {size} characters (limit {most:.0f}); send fewer or shorter ones")
        if client.background:
            yield math.inf
            return
        if (excess := sizes.excess(client, size)) > 0:
            wait_s = min(self._speed.seconds(LANE, excess), MAX_RETRY_AFTER_S)
            raise Overloaded(
                f"{sizes.held:.0f} characters wait to be tokenised; try again in {whole_seconds(wait_s)} s",
                retry_after_s=wait_s,
            )
        sizes.hold(client, size)
        try:
            yield self._handed_out + size
        finally:
            sizes.release(client, size)

    async def run(self, client: Client, turn: float, size: int, work: Callable[[], Result]) -> Result:
        """Runs a slice of `size` characters in a thread when its turn comes, and returns its result.

        Even if the call is cancelled, a slice that has begun keeps its thread to the end and is charged to its client.
        Raises NotReady once the pool is closed.
        """
        if self._free:
            self._free -= 1
        else:
            await self._turn(client, turn)
        self._handed_out += size
        loop = asyncio.get_running_loop()
        start = loop.time()

        def end(ended: asyncio.Future[Result]) -> None:
            ended.exception()  # retrieved even if nobody waits for it any more, or asyncio would log it
            seconds = loop.time() - start
            self._speed.report(LANE, size, seconds)
            self._waiting.charge(client, seconds)
            self._hand_over()

        try:
            working = loop.run_in_executor(self._threads, work)
        except RuntimeError:  # the pool is closed, which the next in line must learn too
            self._hand_over()
            raise NotReady(STOPPING) from None
        working.add_done_callback(end)
        try:
            await asyncio.wait([working])  # which goes on if this call is cancelled
            return working.result()
        finally:
            del working  # or errors hold it

    def close(self) -> None:
        """Ends the threads when their work is done."""
        self._threads.shutdown()

    async def _turn(self, client: Client, turn: float) -> None:
        ready = self._waiting.wait(client, turn)
        try:
            await ready
        except asyncio.CancelledError:
            if not ready.cancelled():  # a thread had been handed over
                self._hand_over()
            raise

    def _hand_over(self) -> None:
        if self._waiting.serve_next() is None:
            self._free += 1
