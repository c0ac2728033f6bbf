"""Clients, and how they share what is limited."""

from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """Whom a request is attributed to.

    name: of its key, or its address.  share: the part of a resource that it may hold while nobody else holds any,
    above 0 and below 1.  background: whether its work is done only while there is no other.
    """

    name: str
    share: float = 0.5
    background: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must be above 0 and below 1, got {self.share}")

    @property
    def weight(self) -> float:
        """How much it may hold of a resource, or be handed of the scoring thread's work, for each part of others."""
        return self.share / (1 - self.share)


ITSELF = Client("bandrank")  # self-tests, and corpora that are encoded ahead
SHADOW = Client("shadow", share=1 / 8, background=True)  # answered requests that a second model scores


def excess(client: Client, amount: float, *, held: float, free: float) -> float:
    """How much a client that holds some of a resource has to release before it may hold `amount` more of what is free;
    0 or less if it may at once.

    It may hold a multiple of what is then free: as much for a share of 1/2. So one client alone gets its share and two
    get a third each, and however many there are, something is left for one more. (Dynamic thresholds; Choudhury and
    Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998.)
    """
    return (held + amount - client.weight * (free - amount)) / (1 + client.weight)


class Shares:
    """A resource of which clients hold parts, each no more than fits. Used from one event loop."""

    def __init__(self, total: float) -> None:
        self.total = total
        self.held = 0.0
        self._held: defaultdict[Client, float] = defaultdict(float)

    def most(self, client: Client) -> float:
        """How much the client could hold if nobody held any."""
        return client.share * self.total

    def held_by(self, client: Client) -> float:
        """How much the client holds."""
        return self._held.get(client, 0.0)

    def excess(self, client: Client, amount: float) -> float:
        """How much the client has to release before it may hold `amount` more; 0 or less if it may at once."""
        return excess(client, amount, held=self.held_by(client), free=self.total - self.held)

    def fits(self, client: Client, amount: float) -> bool:
        """Whether the client may hold `amount` more."""
        return self.excess(client, amount) <= 0

    def hold(self, client: Client, amount: float) -> None:
        """Counts `amount` more as held by the client, whether it fits or not."""
        self.held += amount
        self._held[client] += amount

    def release(self, client: Client, amount: float) -> None:
        """Counts `amount` less as held by the client."""
        self.held -= amount
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]
