"""The load generator, against servers of known behaviour: it sends on time, once, and from its own address."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bandrank_bench.overload.connections import Connections, parse_head
from bandrank_bench.overload.loops import Sender, Window, closed_loop, open_loop
from bandrank_bench.overload.requests import Request
from bandrank_bench.service import Service

REQUEST = Request(b"POST /rerank HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 1)
RANKING = b'{"results":[{"index":0,"relevance_score":0.5}],"usage":{"total_tokens":9}}'
WINDOW = Window(0.0, 0.1)


def answer(body: bytes = RANKING, *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(handle: Callable[[asyncio.StreamWriter], Awaitable[bytes | None]]) -> AsyncIterator[Service]:
    """A server that answers each request with what `handle` returns, and closes the connection for None."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                sent = await handle(writer)
                if sent is None:
                    break
                writer.write(sent)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass  # the client has closed the connection
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield Service(server.sockets[0].getsockname()[1], os.getpid())


async def test_a_request_does_not_wait_for_the_answer_of_another() -> None:
    """A server that answers nobody before the twentieth request has come gets all twenty."""
    come, all_come = 0, asyncio.Event()

    async def handle(_: asyncio.StreamWriter) -> bytes:
        nonlocal come
        come += 1
        if come == 20:
            all_come.set()
        await all_come.wait()
        return answer()

    async with serving(handle) as service:
        sender = Sender([REQUEST] * 20, [0.005 * number for number in range(20)])
        ((*outcomes,),), _ = await open_loop(service, [sender], WINDOW, 60.0)

    assert [outcome.kind for outcome in outcomes] == ["answered"] * 20
    assert [outcome.due_s for outcome in outcomes] == sender.times


async def test_senders_are_told_apart_by_their_address() -> None:
    async def handle(writer: asyncio.StreamWriter) -> bytes:
        refused = writer.get_extra_info("peername")[0] == "127.0.0.3"
        return answer(status="429 Too Many Requests", headers="Retry-After: 2\r\n") if refused else answer()

    async with serving(handle) as service:
        polite, flood = Sender([REQUEST] * 2, [0.0, 0.01], "127.0.0.2"), Sender([REQUEST] * 5, [0.0] * 5, "127.0.0.3")
        (first, second), _ = await open_loop(service, [polite, flood], WINDOW, 60.0)

    assert [outcome.kind for outcome in first] == ["answered"] * 2
    assert [outcome.kind for outcome in second] == ["refused"] * 5


async def test_a_request_without_an_answer_is_lost_and_not_sent_again() -> None:
    """Neither on a new connection nor on a kept one is a request sent twice."""
    come = 0

    async def handle(_: asyncio.StreamWriter) -> bytes | None:
        nonlocal come
        come += 1
        return answer() if come == 1 else None

    async with serving(handle) as service:
        sender = Sender([REQUEST] * 3, [0.0, 0.05, 0.1])
        ((*outcomes,),), _ = await open_loop(service, [sender], WINDOW, 60.0)

    assert sorted(outcome.kind for outcome in outcomes) == ["answered", "lost", "lost"]
    assert come == 3


async def test_a_closed_loop_has_as_many_requests_in_flight_as_connections() -> None:
    """A server that answers nobody before the third request has come serves three connections, and sees no fourth."""
    in_flight, seen = 0, [0]
    all_come = asyncio.Event()

    async def handle(_: asyncio.StreamWriter) -> bytes:
        nonlocal in_flight
        in_flight += 1
        seen.append(in_flight)
        if in_flight == 3:
            all_come.set()
        await all_come.wait()
        await asyncio.sleep(0.01)  # time for a fourth to come
        in_flight -= 1
        return answer()

    async with serving(handle) as service:
        outcomes, _ = await closed_loop(service, iter(lambda: REQUEST, None), WINDOW, 60.0, connections=3)

    assert max(seen) == 3
    assert {outcome.kind for outcome in outcomes} == {"answered"}


async def test_a_connection_is_kept_unless_the_server_closes_it() -> None:
    """Two answers come over one connection; after `Connection: close`, the next request has one of its own."""
    ports: list[int] = []

    async def handle(writer: asyncio.StreamWriter) -> bytes:
        ports.append(writer.get_extra_info("peername")[1])
        return answer(headers="Connection: close\r\n" if len(ports) == 2 else "")

    async with serving(handle) as service, Connections(service.port) as client:
        bodies = [(await client.post(REQUEST.message)).body for _ in range(3)]

    assert bodies == [RANKING] * 3
    assert ports[0] == ports[1] != ports[2]


def test_heads_are_read_whatever_the_case_of_their_names() -> None:
    """Reading an answer that does not tell its length is an error."""
    head = b"HTTP/1.1 429 Too Many Requests\r\nRETRY-AFTER: 3\r\ncontent-length:  12\r\n\r\n"

    assert parse_head(head) == (429, {"retry-after": "3", "content-length": "12"})
    with pytest.raises(EOFError):
        parse_head(b"HTTP/1.1 200 OK\r\n\r\n")
