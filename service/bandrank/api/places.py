"""Who may hold a connection: no address can crowd out the others."""

from collections import OrderedDict
from typing import Protocol

from bandrank.engine.clients import Client, Shares


class Connection(Protocol):
    """What can be closed to make room for others."""

    def give_up(self, reason: str) -> None:
        """Closes the connection at once, whatever is unsent, and leaves its place."""


class Places:
    """Places for connections, of which each address has its share. Used from the event loop.

    Where there is none for a newcomer, the connection that has been silent for longest gives up its own: of the same
    address, else of one that holds as many or more.
    """

    def __init__(self, total: int) -> None:
        self._shares = Shares(max(2, total))  # a share is less than all: of one place nobody would get any
        self._holders: dict[Connection, Client] = {}
        self._silent: OrderedDict[Connection, None] = OrderedDict()  # those that nothing is owed to, oldest first

    def take(self, newcomer: Connection, client: Client) -> bool:
        """Takes a place for a connection, which counts as silent; returns False if there is none."""
        if not self._shares.fits(client, 1):
            if (silent := self._oldest_for(client)) is None:
                return False
            silent.give_up("displaced")
        self._shares.hold(client, 1)
        self._holders[newcomer] = client
        self._silent[newcomer] = None
        return True

    def leave(self, connection: Connection) -> None:
        """Gives the place of a connection to others."""
        self._shares.release(self._holders.pop(connection), 1)
        self._silent.pop(connection, None)

    def falls_silent(self, connection: Connection) -> None:
        """Counts a connection as one that nothing is owed to, from now on."""
        self._silent[connection] = None

    def speaks(self, connection: Connection) -> None:
        """Counts a connection as one that is owed an answer."""
        self._silent.pop(connection, None)

    def _oldest_for(self, client: Client) -> Connection | None:
        most = self._shares.held_by(client)
        own = (each for each in self._silent if self._holders[each] == client)
        of_others = (each for each in self._silent if self._shares.held_by(self._holders[each]) >= most)
        return next(own, None) or next(of_others, None)
