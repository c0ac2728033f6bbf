"""Connections to the search engine: each client has a share of them, so that none keeps the others waiting."""

import asyncio
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from support.proxied import Proxied, proxied
from support.scripted_server import read_message, scripted_server
from support.tasks import HANG_S

from bandrank.engine.clients import Client
from bandrank.errors import Overloaded, ShareUsed
from bandrank.proxy.upstream_slots import UpstreamSlots

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
ONE, OTHER, THIRD = map(Client, ("one", "other", "third"))


@contextmanager
def slow_request(proxy: Proxied, sender: str) -> Iterator[socket.socket]:
    """A request of a forwarded client whose body does not arrive."""
    head = b"POST /_bulk HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: %b\r\nContent-Length: 2\r\n\r\n" % sender.encode()
    with socket.create_connection(proxy.address, timeout=HANG_S) as connection:
        connection.sendall(head)
        yield connection


def test_slow_requests_of_a_client_leave_connections_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its share the client gets 429, which is no failure of the engine; its slow requests are answered."""
    monkeypatch.setattr("bandrank.proxy.upstream.CONNECT_S", 0.2)
    with scripted_server(OK) as engine, proxied(engine.url, proxy_connections=8) as proxy, ExitStack() as held:
        slow = [held.enter_context(slow_request(proxy, "192.0.2.1")) for _ in range(8)]
        refusals = []
        while len(refusals) < 4 and (answered := select.select(slow, [], [], HANG_S)[0]):
            slow = [connection for connection in slow if connection not in answered]
            refusals += [read_message(connection.recv) for connection in answered]
        with proxy.client() as client:
            answers = [client.get("/", headers={"x-forwarded-for": "192.0.2.2"}) for _ in range(3)]
        for connection in slow:
            connection.sendall(b"{}")

        assert [answer.status_code for answer in answers] == [200] * 3
        assert [read_message(connection.recv) for connection in slow] == [OK] * 4
        assert len(refusals) == 4
        assert all(b" 429 " in answer and b"send fewer at once" in answer for answer in refusals)
        assert proxy.count("proxy_upstream_failures", reason="share") == 4
        assert proxy.count("proxy_requests", outcome="unanswered") == 0


async def test_one_client_has_half_and_all_have_all() -> None:
    """Each client leaves a slot for one more, until the last slot is taken."""
    slots = UpstreamSlots(8)
    taken = [await held_by(slots, Client(str(number))) for number in range(4)]

    assert taken == [4, 2, 1, 1]
    with pytest.raises(Overloaded, match="all connections") as refused:
        await slots.take(Client("late"), patience_s=0)
    assert not isinstance(refused.value, ShareUsed)


async def held_by(slots: UpstreamSlots, client: Client) -> int:
    """Takes slots for a client until its share is used, and returns how many it got."""
    for number in range(100):
        try:
            await slots.take(client, patience_s=0)
        except ShareUsed:
            return number
    raise AssertionError("a client has no bound")


async def test_a_slot_goes_to_who_waits_and_holds_fewest() -> None:
    """Of clients that hold equally many, the first gets it; one that gives up or hangs up leaves nothing behind."""
    slots = UpstreamSlots(4)
    got: list[str] = []

    async def take(client: Client, patience_s: float = HANG_S) -> None:
        await slots.take(client, patience_s=patience_s)
        got.append(client.name)

    await take(ONE)
    await take(ONE)
    await take(OTHER)
    await take(THIRD)
    new, newer = map(Client, ("new", "newer"))
    gone, *waiting = [asyncio.create_task(take(client)) for client in (new, ONE, OTHER, new, newer)]
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(ShareUsed):
        await take(THIRD, 0.01)
    for client in (ONE, OTHER, THIRD, new, OTHER):
        slots.release(client)
        await asyncio.sleep(0.01)
    await asyncio.gather(*waiting)

    assert got == ["one", "one", "other", "third", "new", "other", "newer", "one"]


async def test_who_hangs_up_when_its_turn_comes_gives_its_slot_back() -> None:
    """The client is cancelled after it was given the slot, and before it runs again."""
    slots = UpstreamSlots(1)
    await slots.take(ONE, patience_s=0)
    waiting = asyncio.create_task(slots.take(OTHER, patience_s=HANG_S))
    await asyncio.sleep(0.01)
    slots.release(ONE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    await slots.take(ONE, patience_s=0)
