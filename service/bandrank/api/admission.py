"""Who sends a request, and whether they may."""

from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from typing import Annotated

from fastapi import Depends, Request

from bandrank.api.service import ServiceOfApp
from bandrank.engine.clients import Client
from bandrank.engine.memory import Account


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


def account_for(scope: Scope) -> Callable[..., AsyncIterator[Account]]:
    """A dependency of endpoints that take bodies: the account of an admitted request, until its answer is sent."""

    async def account(
        service: ServiceOfApp, client: Annotated[Client, Depends(admitted(scope))]
    ) -> AsyncIterator[Account]:
        with service.memory.account(client) as account:
            yield account

    return account
