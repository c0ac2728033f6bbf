"""Many pieces of work at once do not keep the event loop from everybody else."""

import asyncio
import time

import pytest

from bandrank.api.pace import QUANTUM_S, Pace

pytestmark = pytest.mark.anyio


async def test_the_loop_goes_round_between_pieces_of_work() -> None:
    """As often as their time asks for it: each of these is longer than the quantum."""
    pace = Pace()
    rounds: list[int] = []
    done = 0

    def work() -> None:
        nonlocal done
        time.sleep(2 * QUANTUM_S)
        done += 1

    async def look() -> None:
        while done < 5:
            rounds.append(done)
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    await asyncio.gather(*(pace.run(work) for _ in range(5)))
    await looking
    assert {1, 2, 3, 4} <= {*rounds}


async def test_short_pieces_do_not_wait_for_each_other() -> None:
    """They are done in one round of the loop, in the order in which they came."""
    pace = Pace()
    done: list[int] = []
    asked = [asyncio.ensure_future(pace.run(done.append, number)) for number in range(20)]
    await asyncio.sleep(0)
    assert done == list(range(20))
    await asyncio.gather(*asked)


async def test_work_that_fails_counts_as_well() -> None:
    """Its error is the caller's, and the next piece runs."""
    pace = Pace()
    with pytest.raises(ZeroDivisionError):
        await pace.run(lambda: 1 / 0)
    assert await pace.run(abs, -1) == 1
