"""Slots for connections, shared so that no address can crowd out the others."""

from collections import OrderedDict
from typing import Protocol

from bandrank.engine.clients import Client, Shares


class Connection(Protocol):
    """A connection that can be closed to make room for others."""

    def give_up(self, reason: str) -> None:
        """Closes the connection at once, dropping unsent bytes, and releases its slot."""


class ConnectionSlots:
    """A number of slots for connections; each address has its share. Used from the event loop.

    If none is left for a newcomer, the connection that has been idle longest gives up its slot: one of the same address
    or else of an address that holds as many or more.
    """

    def __init__(self, total: int) -> None:
        self._shares = Shares(max(2, total))  # a share is less than all: nobody would get a single slot
        self._holders: dict[Connection, Client] = {}
        self._idle: OrderedDict[Connection, None] = OrderedDict()  # connections that are owed nothing, oldest first

    def take(self, newcomer: Connection, client: Client) -> bool:
        """Takes a slot for a connection, which counts as idle; returns False if there is none."""
        if not self._shares.fits(client, 1):
            if (idle := self._oldest_for(client)) is None:
                return False
            idle.give_up("displaced")
        self._shares.hold(client, 1)
        self._holders[newcomer] = client
        self._idle[newcomer] = None
        return True

    def release(self, connection: Connection) -> None:
        """Gives the slot of a connection to others."""
        self._shares.release(self._holders.pop(connection), 1)
        self._idle.pop(connection, None)

    def set_idle(self, connection: Connection, *, idle: bool) -> None:
        """Says whether a connection is owed nothing from now on."""
        if idle:
            self._idle[connection] = None
        else:
            self._idle.pop(connection, None)

    def _oldest_for(self, client: Client) -> Connection | None:
        most = self._shares.held_by(client)
        own = (each for each in self._idle if self._holders[each] == client)
        of_others = (each for each in self._idle if self._shares.held_by(self._holders[each]) >= most)
        return next(own, None) or next(of_others, None)
