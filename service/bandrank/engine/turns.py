"""Turns for work that is done in slices: bounded in size, shared by clients, and small requests pass large ones."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from bandrank.engine.clients import Client, Shares
from bandrank.engine.task_queue import MAX_RETRY_AFTER_S
from bandrank.engine.throughput import Throughput
from bandrank.engine.waiting import WaitingClients
from bandrank.errors import InputTooLarge, Overloaded

LANE = "tokenize"


class Turns:
    """Hands out `num_at_once` slots, each for a slice of a request: to the client whose slices took least time, and of
    its requests in the order of their turns.

    A turn is the size of the work that had been handed out when the request arrived, plus its own size, as in the task
    queue: nothing starves, and a small request passes large ones. Background work comes after all others, and takes
    none of their room; whoever asks for it bounds it. Used from one event loop.
    """

    def __init__(self, num_at_once: int, *, max_size: float) -> None:
        self._free = num_at_once
        self._sizes = Shares(max_size)
        self._handed_out = 0
        self._waiting = WaitingClients()
        self._speed = Throughput()

    @contextmanager
    def admit(self, client: Client, size: int) -> Iterator[float]:
        """The turn of a request of this size in characters, which counts until the end of the block.

        Raises InputTooLarge if its client could never have this much waiting, and Overloaded if it cannot now.
        """
        sizes = self._sizes
        if size > (most := sizes.most(client)):
            raise InputTooLarge(f"the texts have {size} characters (limit {most:.0f}); send fewer or shorter ones")
        if client.background:
            yield math.inf
            return
        if (excess := sizes.excess(client, size)) > 0:
            seconds = self._speed.seconds(LANE, excess)
            raise Overloaded(
                f"{sizes.held:.0f} characters wait to be tokenised; try again in {seconds:.1f} s",
                retry_after_s=min(seconds, MAX_RETRY_AFTER_S),
            )
        sizes.hold(client, size)
        try:
            yield self._handed_out + size
        finally:
            sizes.release(client, size)

    @asynccontextmanager
    async def slot(self, client: Client, turn: float, size: int) -> AsyncIterator[None]:
        """A slot for a slice of this size, as soon as the client's turn comes."""
        if self._free:
            self._free -= 1
        else:
            ready = self._waiting.wait(client, turn)
            try:
                await ready
            except asyncio.CancelledError:
                if not ready.cancelled():  # the slot had been handed over
                    self._hand_over()
                raise
        self._handed_out += size
        start = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            seconds = asyncio.get_running_loop().time() - start
            self._speed.report(LANE, size, seconds)
            self._waiting.charge(client, seconds)
            self._hand_over()

    def _hand_over(self) -> None:
        if self._waiting.serve_next() is None:
            self._free += 1
