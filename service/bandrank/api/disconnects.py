"""Gives up work when the client hangs up."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def unless_gone(gone: Awaitable[bool], work: Awaitable[T]) -> T:
    """The result of `work`, unless `gone` says first that the client hung up.

    In that case it cancels the work, waits until that has ended and raises ClientDisconnect.
    """
    watching, working = asyncio.ensure_future(gone), asyncio.ensure_future(work)
    try:
        await asyncio.wait([watching, working], return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and watching.result():
            raise ClientDisconnect
        return await working
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)  # what it raises after that is of no use
        del watching, working  # or errors hold them, and what the request held


async def hung_up(request: Request) -> bool:
    """Waits until the client of a request whose body was read hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return True
