"""Clients, and how they share what is limited."""

from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """The party to which a request is attributed.

    name: the name of its key, or its address.  share: the part of a resource that it may hold while nobody else holds
    any, above 0 and below 1.  background: whether its work is done only while there is no other.
    """

    name: str
    share: float = 0.5
    background: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must be above 0 and below 1, got {self.share}")

    @property
    def weight(self) -> float:
        """How much of a resource it may hold per unit that is free, and its weight in sharing the scoring thread."""
        return self.share / (1 - self.share)


ITSELF = Client("bandrank")  # self-tests, and corpora that are encoded ahead
SHADOW = Client("shadow", share=1 / 8, background=True)  # answered requests that a second model scores


def excess(client: Client, amount: float, *, held: float, free: float) -> float:
    """How much a client must release before it may hold `amount` more of a resource; 0 or less if it may at once.

    held: what it holds now.  free: what nobody holds.
    A client may hold its weight times what is then free: for a share of 1/2, as much as is free. So one such client
    alone gets half and two get a third each, and however many there are, something is left for one more. (Dynamic
    thresholds; Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998.)
    """
    return (held + amount - client.weight * (free - amount)) / (1 + client.weight)


class Shares:
    """A resource shared by clients, and what each of them holds. Used from one event loop."""

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
        """How much the client must release before it may hold `amount` more; 0 or less if it may at once."""
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
