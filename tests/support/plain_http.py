"""HTTP clients of servers on this machine.

They trust no certificates: by default httpx reads all that the machine trusts for each client, which takes longer than
most requests.
"""

import ssl
from typing import Any

import httpx
from support.tasks import HANG_S

TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
OPTIONS: dict[str, Any] = {"verify": TRUSTS_NOBODY, "timeout": HANG_S, "trust_env": False}


def client(url: str, **more: Any) -> httpx.Client:
    """A client of this server, with connections of its own."""
    return httpx.Client(base_url=url, **(OPTIONS | more))


def ask(method: str, url: str, **more: Any) -> httpx.Response:
    """The answer to a request on a connection of its own."""
    return httpx.request(method, url, **(OPTIONS | more))


def get(url: str, **more: Any) -> httpx.Response:
    return ask("GET", url, **more)


def post(url: str, **more: Any) -> httpx.Response:
    return ask("POST", url, **more)
