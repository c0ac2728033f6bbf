"""Clients, and how they share what is limited."""

from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """Whom a request is attributed to.

    name: of its key, or its address.  share: the part of a resource that it may hold while nobody else holds any,
    above 0 and below 1.
    """

    name: str
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must be above 0 and below 1, got {self.share}")


ITSELF = Client("bandrank")  # self-tests, and corpora that are encoded ahead


class Shares:
    """A resource of which clients hold parts. Used from one event loop.

    A client may hold a multiple of what is free: as much as is free for a share of 1/2. So one client alone gets its
    share and two get a third each, and however many there are, something is left for one more. (Dynamic thresholds;
    Choudhury & Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998.)
    """

    def __init__(self, total: float) -> None:
        self.total = total
        self.held = 0.0
        self._held: defaultdict[str, float] = defaultdict(float)

    def most(self, client: Client) -> float:
        """How much the client could hold if nobody held any."""
        return client.share * self.total

    def held_by(self, client: Client) -> float:
        """How much the client holds."""
        return self._held.get(client.name, 0.0)

    def fits(self, client: Client, amount: float) -> bool:
        """Whether the client may hold so much more."""
        factor = client.share / (1 - client.share)
        return self.held_by(client) + amount <= factor * (self.total - self.held - amount)

    def hold(self, client: Client, amount: float) -> None:
        """Counts so much more as held by the client, whether it fits or not."""
        self.held += amount
        self._held[client.name] += amount

    def release(self, client: Client, amount: float) -> None:
        """Counts so much less as held by the client."""
        self.held -= amount
        self._held[client.name] -= amount
        if self._held[client.name] <= 0:
            del self._held[client.name]
        if not self._held:
            self.held = 0.0  # also of the rounding that fractions leave behind
