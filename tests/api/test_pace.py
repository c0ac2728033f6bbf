"""Much work that comes at once does not keep others from the event loop."""

import asyncio
import time

from support.tasks import CLIENT, until

from bandrank.api.pace import QUANTUM_S, Pace
from bandrank.engine.clients import Client


async def test_the_loop_goes_round_between_pieces_of_work() -> None:
    """Each piece here takes longer than the quantum, so the loop goes round after every one."""
    pace = Pace()
    rounds: list[int] = []
    done = 0

    async def work() -> None:
        nonlocal done
        await pace.turn(CLIENT)
        time.sleep(2 * QUANTUM_S)  # noqa: ASYNC251 - the loop is to be held
        done += 1

    async def look() -> None:
        while done < 5:
            rounds.append(done)
            await asyncio.sleep(0)

    await asyncio.gather(*(work() for _ in range(5)), look())
    assert {1, 2, 3, 4} <= {*rounds}


async def test_short_pieces_do_not_wait_for_each_other() -> None:
    """Short pieces are done in one round of the loop, in the order in which they came."""
    pace = Pace()
    done: list[int] = []

    async def work(number: int) -> None:
        await pace.turn(CLIENT)
        done.append(number)

    asked = [asyncio.ensure_future(work(number)) for number in range(20)]
    await asyncio.sleep(0)
    assert done == list(range(20))
    await asyncio.gather(*asked)


async def test_what_waits_comes_before_newcomers() -> None:
    """Waiting pieces go first even if a task fills every round, and cancelled ones in between do not matter."""
    pace = Pace()
    order: list[str] = []

    async def work(name: str, *, seconds: float = 0.0) -> None:
        await pace.turn(CLIENT)
        time.sleep(seconds)  # noqa: ASYNC251 - the loop is to be held
        order.append(name)

    async def fill() -> None:
        for _ in range(4):
            await work("long", seconds=2 * QUANTUM_S)
            await asyncio.sleep(0)

    filling = asyncio.ensure_future(fill())
    waiting = [asyncio.ensure_future(work(name)) for name in ("first", "cancelled", "second")]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.gather(filling, *waiting, return_exceptions=True)
    assert order == ["long", "first", "second", "long", "long", "long"]


async def test_a_request_that_is_begun_does_not_wait_for_all_new_ones_with_each_of_its_pieces() -> None:
    """After its first piece, a request goes before new ones."""
    pace = Pace()
    order: list[str] = []

    async def request(name: str, pieces: int) -> None:
        for piece in range(pieces):
            await pace.turn(CLIENT, new=piece == 0)
            time.sleep(2 * QUANTUM_S)  # noqa: ASYNC251 - the loop is to be held
            order.append(name)

    await asyncio.gather(request("first", 1), request("several", 3), *(request("new", 1) for _ in range(4)))
    assert order == ["first", *["several"] * 3, *["new"] * 4]


async def test_nobody_waits_for_all_that_another_client_has_begun() -> None:
    """Before each of its pieces a client waits for one piece of another client's flood."""
    pace = Pace()
    order: list[str] = []

    async def request(name: str, pieces: int) -> None:
        for piece in range(pieces):
            await pace.turn(Client(name), new=piece == 0)
            time.sleep(2 * QUANTUM_S if name == "greedy" else 0.0)  # noqa: ASYNC251 - the loop is to be held
            order.append(name)

    greedy = [asyncio.ensure_future(request("greedy", 2)) for _ in range(10)]
    await until(lambda: len(order) > 2)
    before = len(order)
    await request("polite", 3)
    assert order.count("greedy") <= before + 4
    await asyncio.gather(*greedy)
