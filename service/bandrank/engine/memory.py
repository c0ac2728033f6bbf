"""One budget for the memory of all requests in flight, of which each client holds its share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bandrank.engine.clients import Client, Shares
from bandrank.errors import InputTooLarge, Overloaded
from bandrank.metrics import Metrics

RETRY_AFTER_S = 1.0


class Account:
    """What a request holds of the budget, from its body to its answer.

    reclaim: called if what a request needs does not fit; gives back what background work holds.
    """

    def __init__(self, budget: Shares, client: Client, reclaim: Callable[[], None]) -> None:
        self.client = client
        self.held = 0
        self._budget = budget
        self._reclaim = reclaim

    def hold(self, num_bytes: int) -> None:
        """Reserves `num_bytes` more, before they are used.

        Raises InputTooLarge if one request of the client could never have them, and Overloaded if it cannot now.
        """
        if self.held + num_bytes > (most := self._budget.most(self.client)):
            raise InputTooLarge(f"the request takes more than {most:.0f} bytes of memory; send fewer or shorter texts")
        if not self._budget.fits(self.client, num_bytes) and not self.client.background:
            self._reclaim()
        if not self._budget.fits(self.client, num_bytes):
            raise Overloaded(
                "the requests in flight take all memory that you may use; try again when some of yours are answered",
                retry_after_s=RETRY_AFTER_S,
            )
        self._budget.hold(self.client, num_bytes)
        self.held += num_bytes

    def close(self) -> None:
        """Gives back everything it holds."""
        self._budget.release(self.client, self.held)
        self.held = 0


class Memory:
    """The budget. Used from one event loop.

    reclaim: makes background work give up what it holds.
    """

    def __init__(self, max_bytes: int, metrics: Metrics) -> None:
        self._budget = Shares(max_bytes)
        self.reclaim: Callable[[], None] = lambda: None
        metrics.memory_in_flight_bytes.set_function(lambda: self._budget.held)

    def open(self, client: Client) -> Account:
        """An account that is open until its holder closes it."""
        return Account(self._budget, client, self.reclaim)

    @contextmanager
    def account(self, client: Client) -> Iterator[Account]:
        """An account that is closed, with all that it holds given back, when the block ends."""
        account = self.open(client)
        try:
            yield account
        finally:
            account.close()
