"""One budget for the memory that requests in flight take; each client holds its share of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from bandrank.engine.clients import Client, Shares
from bandrank.errors import InputTooLarge, Overloaded
from bandrank.metrics import Metrics

RETRY_AFTER_S = 1.0


class Account:
    """What a request holds of the budget, from its body to its answer."""

    def __init__(self, budget: Shares, client: Client) -> None:
        self.client = client
        self.held = 0
        self._budget = budget

    def hold(self, num_bytes: int) -> None:
        """Takes so many more bytes, before they are spent.

        Raises InputTooLarge if the client could never have so many for one request, and Overloaded if it cannot now.
        """
        if self.held + num_bytes > (most := self._budget.most(self.client)):
            raise InputTooLarge(f"the request takes more than {most:.0f} bytes of memory; send fewer or shorter texts")
        if not self._budget.fits(self.client, num_bytes):
            raise Overloaded(
                "the requests in flight take all memory that you may use; try again when some of yours are answered",
                retry_after_s=RETRY_AFTER_S,
            )
        self._budget.hold(self.client, num_bytes)
        self.held += num_bytes


class Memory:
    """The budget. Used from one event loop."""

    def __init__(self, max_bytes: int, metrics: Metrics) -> None:
        self._budget = Shares(max_bytes)
        metrics.memory_in_flight_bytes.set_function(lambda: self._budget.held)

    @contextmanager
    def account(self, client: Client) -> Iterator[Account]:
        """An account that is closed, with all that it holds given back, when the block ends."""
        account = Account(self._budget, client)
        try:
            yield account
        finally:
            self._budget.release(client, account.held)
