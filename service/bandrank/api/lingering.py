"""Reads the rest of a request that was answered before its end, on a connection that ends with the answer.

Closing a connection with something unread resets it, and a client that is still sending may never read its answer (RFC
9112, 9.6). A reverse proxy that speaks HTTP/1.0 would answer 502 in its place.
"""

from collections.abc import Callable

from uvicorn._types import ASGISendCallable, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def send_lingering(cycle: RequestResponseCycle, linger: Callable[[], bool]) -> ASGISendCallable:
    """The cycle's `send`, but if some of the request is still to come, `linger` says whether the connection stays open
    for that.

    The answer has told the client that the connection ends.
    """
    send = cycle.send

    async def lingering(message: ASGISendEvent) -> None:
        ends = message["type"] == "http.response.body" and not message.get("more_body", False)
        if ends:
            vars(cycle).pop("send", None)  # this function, which would keep the cycle until garbage is collected
            if cycle.more_body and not cycle.keep_alive:
                cycle.keep_alive = linger()
        await send(message)

    return lingering
