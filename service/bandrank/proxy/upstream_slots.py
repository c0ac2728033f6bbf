"""Shares the connections to the search engine out, so that no client can keep the others from it.

A request may hold one for hours, if its body comes slowly or its answer is read slowly.
"""

import asyncio

from bandrank.engine.clients import Client, Shares
from bandrank.errors import Overloaded, ShareUsed

RETRY_AFTER_S = 1.0


class UpstreamSlots:
    """Slots for requests to the engine, of which each client has its share. Used from one event loop.

    A request without a slot waits. Next comes the first request of the client that holds the fewest.
    """

    def __init__(self, total: int) -> None:
        self._shares = Shares(total + 1)  # clients always leave something free: here, a slot that does not exist
        self._waiting: dict[asyncio.Future[None], Client] = {}

    async def take(self, client: Client, *, patience_s: float) -> None:
        """Takes a slot. If it gets none within `patience_s`, raises ShareUsed if the client has some, or Overloaded."""
        if self._shares.fits(client, 1):
            self._shares.hold(client, 1)
            return
        ready = asyncio.get_running_loop().create_future()
        self._waiting[ready] = client
        try:
            await asyncio.wait([ready], timeout=patience_s)
        except asyncio.CancelledError:
            if ready.done():
                self.release(client)
            raise
        finally:
            self._waiting.pop(ready, None)
        if not ready.done():
            if self._shares.held_by(client):
                raise ShareUsed(
                    "your requests hold all connections to the search engine that you may use; "
                    "send fewer at once, or try again when some of them are answered",
                    retry_after_s=RETRY_AFTER_S,
                )
            raise Overloaded("all connections to the search engine are in use", retry_after_s=RETRY_AFTER_S)

    def release(self, client: Client) -> None:
        """Releases a slot of the client to those that wait. If the one with the fewest may not take it, none may."""
        self._shares.release(client, 1)
        while self._waiting:
            ready = min(self._waiting, key=lambda each: self._shares.held_by(self._waiting[each]))
            following = self._waiting[ready]
            if not self._shares.fits(following, 1):
                return
            del self._waiting[ready]
            self._shares.hold(following, 1)
            ready.set_result(None)
