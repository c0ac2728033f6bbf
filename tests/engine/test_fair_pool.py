"""The tokenizer's pool and its queue are shared fairly: no client is kept waiting by how much another has waiting."""

import asyncio
import gc
import threading
import time
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tasks import HANG_S, until

from bandrank.engine.clients import SHADOW, Client
from bandrank.engine.fair_pool import FairPool
from bandrank.engine.fair_queue import FairQueue
from bandrank.errors import NotReady, Overloaded

POLITE, GREEDY = Client("polite"), Client("greedy")


async def test_a_newcomer_waits_for_one_piece_of_another_client() -> None:
    """However many pieces another client has waiting, each piece of the newcomer waits for only one of them."""
    waiting = FairQueue()
    for _ in range(100):
        waiting.wait(GREEDY, 0.0)
    served = []
    for _ in range(3):
        served.append(waiting.serve_next())
        waiting.charge(GREEDY, 1.0)
        waiting.wait(POLITE, 1.0)
        served.append(waiting.serve_next())
        waiting.charge(POLITE, 0.001)

    assert served == [GREEDY, POLITE] * 3


@given(seconds=st.tuples(*[st.integers(1, 20)] * 3))
def test_clients_get_time_by_their_shares(seconds: tuple[int, int, int]) -> None:
    """However long each client's pieces take, times divided by weights differ by at most one piece."""

    async def run() -> None:
        waiting, clients = FairQueue(), (Client("a"), Client("b"), Client("c", share=2 / 3))
        took: Counter[Client] = Counter()
        for client in clients:
            for _ in range(200):
                waiting.wait(client, 0.0)
        for _ in range(200):
            client = waiting.serve_next()
            assert client is not None
            amount = seconds[clients.index(client)]
            waiting.charge(client, amount)
            took[client] += amount
        by_weight = [took[client] / client.weight for client in clients]
        assert max(by_weight) - min(by_weight) <= max(seconds)

    asyncio.run(run())


async def test_of_one_client_the_earliest_turn_is_served_and_what_was_cancelled_is_not() -> None:
    """Of equal turns the one that arrived first is served, and background clients come after all others."""
    waiting = FairQueue()
    turns = [(SHADOW, 0.0), (GREEDY, 2.0), (GREEDY, 1.0), (GREEDY, 1.0), (POLITE, 0.0)]
    futures = [waiting.wait(client, turn) for client, turn in turns]
    futures[2].cancel()
    futures[4].cancel()
    order = []
    while waiting.serve_next() is not None:
        order += [number for number, future in enumerate(futures) if future.done() and number not in {2, 4, *order}]

    assert order == [3, 1, 0]
    assert not waiting


async def test_the_tokenizer_is_shared_by_clients() -> None:
    """A request does not wait for all the texts that another client sent before, however long ago that was."""
    pool, order = FairPool(1, max_size=10**9, name="test"), list[str]()

    async def tokenise(client: Client) -> None:
        def work() -> None:
            order.append(client.name)
            time.sleep(0.001)

        with pool.admit(client, 1000) as turn:
            await pool.run(client, turn, 1000, work)

    greedy = [asyncio.ensure_future(tokenise(GREEDY)) for _ in range(20)]
    await until(lambda: len(order) > 2)
    before = len(order)
    await tokenise(POLITE)
    assert order.index("polite") <= before + 1
    await asyncio.gather(*greedy)


async def test_what_was_begun_for_a_client_that_hung_up_counts_as_its_own() -> None:
    """A client that hangs up early and often must not get every thread, only to be first in the queue again."""
    pool, order = FairPool(1, max_size=10**9, name="test"), list[str]()
    begun, ends = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        ends.wait(HANG_S)

    async def tokenise(client: Client) -> None:
        await pool.run(client, 0.0, 1, lambda: order.append(client.name))

    held = asyncio.ensure_future(pool.run(GREEDY, 0.0, 1, hold))
    await until(begun.is_set)
    waiting = [asyncio.ensure_future(tokenise(client)) for client in (POLITE, GREEDY, POLITE)]
    await asyncio.sleep(0)
    held.cancel()
    await asyncio.wait([held])
    await asyncio.sleep(0.1)  # the thread goes on meanwhile
    ends.set()
    await asyncio.gather(*waiting)

    assert held.cancelled()
    assert order == ["polite", "polite", "greedy"]


async def test_what_fails_once_its_client_hung_up_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    pool, going = FairPool(1, max_size=100, name="test"), threading.Event()

    def fail() -> None:
        going.wait(HANG_S)
        raise MemoryError

    call = asyncio.create_task(pool.run(POLITE, 1, 1, fail))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    going.set()
    assert await pool.run(POLITE, 2, 1, lambda: "done") == "done"
    gc.collect()

    assert not caplog.records


async def test_a_thread_that_was_handed_to_a_call_that_is_cancelled_is_handed_on() -> None:
    """The call is cancelled after it was handed the thread, but before it could see that."""
    pool, going = FairPool(1, max_size=100, name="test"), threading.Event()
    begun = asyncio.create_task(pool.run(POLITE, 1, 1, lambda: going.wait(HANG_S)))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(pool.run(POLITE, 2, 1, lambda: None))
    await asyncio.sleep(0)
    going.set()
    while pool._waiting:  # noqa: ASYNC110  # ends in the very turn in which the thread is handed over
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting, begun])

    assert waiting.cancelled()
    async with asyncio.timeout(HANG_S):
        assert await pool.run(POLITE, 3, 1, lambda: "done") == "done"


async def test_a_thread_that_was_idle_runs_one_slice_at_a_time() -> None:
    """Slices that arrive while the thread is busy run in order of turn, whichever came first."""
    pool, order, going = FairPool(1, max_size=100, name="test"), list[int](), threading.Event()
    await pool.run(POLITE, 0, 1, lambda: None)
    begun = asyncio.create_task(pool.run(POLITE, 1, 1, lambda: going.wait(HANG_S)))
    waiting = [asyncio.create_task(pool.run(POLITE, turn, 1, partial(order.append, turn))) for turn in (3, 2)]
    await asyncio.sleep(0)
    going.set()
    await asyncio.gather(begun, *waiting)

    assert order == [2, 3]


async def test_a_refusal_of_the_tokenizer_says_when_there_will_be_room() -> None:
    """The client has 400 of 1,000 characters waiting and may have 500 once nobody else has any: before 150 more are
    admitted 50 have to be tokenised, and before 300 more 200.
    """
    pool, told = FairPool(1, max_size=1000, name="test"), list[float]()
    await pool.run(GREEDY, 0.0, 10, lambda: time.sleep(0.01))  # from here on the speed is known
    with pool.admit(GREEDY, 400):
        for size in (150, 300):
            with pytest.raises(Overloaded, match="400 characters wait") as refusal, pool.admit(GREEDY, size):
                pass
            told.append(refusal.value.retry_after_s)

    assert told[1] == pytest.approx(4 * told[0])
    assert told[0] >= 0.05


async def test_whoever_waits_while_the_threads_end_hears_of_it() -> None:
    pool, going = FairPool(1, max_size=100, name="test"), threading.Event()
    begun = asyncio.create_task(pool.run(POLITE, 1, 1, lambda: going.wait(HANG_S)))
    waiting = [asyncio.create_task(pool.run(POLITE, turn, 1, lambda: None)) for turn in (2, 3)]
    await asyncio.sleep(0)
    going.set()
    pool.close()

    assert await begun
    async with asyncio.timeout(HANG_S):
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in ends] == [NotReady] * 2
