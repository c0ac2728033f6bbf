"""A key is computed once, however many callers ask; no caller waits for ever, or fails for another caller's reasons."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tasks import HANG_S, until

from bandrank.engine.cache.single_flight import SingleFlight
from bandrank.errors import DeadlineExceeded, Overloaded, ScoringFailed

Keys = list[bytes]


class Computation:
    """A `compute` that records its calls and waits until the test ends it."""

    def __init__(self) -> None:
        self.asked: list[Keys] = []
        self.cancelled = 0
        self._outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    async def __call__(self, keys: Keys) -> dict[bytes, bytes]:
        self.asked.append(keys)
        try:
            error = await asyncio.shield(self._outcome)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if error is not None:
            raise error
        return {key: key * 2 for key in keys}

    def end(self, error: Exception | None = None) -> None:
        """Lets the computation succeed or fail, now and whenever it is called again."""
        self._outcome.set_result(error)


async def instant(keys: Keys) -> dict[bytes, bytes]:
    return {key: key * 2 for key in keys}


def answers(*keys: bytes) -> dict[bytes, bytes]:
    return {key: key * 2 for key in keys}


class Callers:
    """Starts calls of one SingleFlight and keeps their tasks."""

    def __init__(self) -> None:
        self.flights = SingleFlight()
        self.tasks: list[asyncio.Task[dict[bytes, bytes]]] = []

    async def call(
        self, keys: Keys, compute: Callable[[Keys], Awaitable[dict[bytes, bytes]]]
    ) -> asyncio.Task[dict[bytes, bytes]]:
        """Starts a call and lets it run as far as it gets alone."""
        task = asyncio.create_task(self.flights.run(keys, compute))
        self.tasks.append(task)
        for _ in range(5):
            await asyncio.sleep(0)
        return task


async def test_a_caller_computes_its_distinct_keys_in_one_call() -> None:
    """Keys keep the order of their first appearance, and no keys need no call."""
    asked: list[Keys] = []

    async def compute(keys: Keys) -> dict[bytes, bytes]:
        asked.append(keys)
        return await instant(keys)

    found = await SingleFlight().run([b"b", b"a", b"b", b"c", b"a"], compute)

    assert (found, asked) == (answers(b"a", b"b", b"c"), [[b"b", b"a", b"c"]])
    assert await SingleFlight().run([], compute) == {}
    assert len(asked) == 1


async def test_what_another_owner_computes_is_not_awaited() -> None:
    """The other owner's computation may have to wait behind much other work of that owner."""
    flights, first, asked = SingleFlight(), Computation(), list[Keys]()

    async def compute(keys: Keys) -> dict[bytes, bytes]:
        asked.append(keys)
        return await instant(keys)

    waiting = asyncio.create_task(flights.run([b"a", b"b"], first, "greedy"))
    await asyncio.sleep(0)

    assert await flights.run([b"a"], compute, "polite") == answers(b"a")
    assert asked == [[b"a"]]
    first.end()
    assert await waiting == answers(b"a", b"b")


async def test_what_another_computes_is_awaited() -> None:
    callers, first, second = Callers(), Computation(), Computation()
    one = await callers.call([b"a", b"b"], first)
    two = await callers.call([b"b", b"c"], second)
    three = await callers.call([b"a", b"c"], instant)
    second.end()
    await asyncio.sleep(0)
    first.end()

    assert await one == answers(b"a", b"b")
    assert await two == answers(b"b", b"c")
    assert await three == answers(b"a", b"c")
    assert (first.asked, second.asked) == ([[b"a", b"b"]], [[b"c"]])


async def test_results_are_not_kept() -> None:
    callers, again = Callers(), Computation()
    again.end()
    await (await callers.call([b"a"], instant))
    await (await callers.call([b"a"], again))

    assert again.asked == [[b"a"]]


async def test_a_small_caller_does_not_wait_for_a_large_one() -> None:
    """A small caller computes the few keys it shares again, while one of a similar size waits."""
    callers, large, similar = Callers(), Computation(), Computation()
    keys = [bytes([number]) for number in range(100)]
    one = await callers.call(keys, large)
    small = await callers.call([keys[7], b"new", keys[9]], instant)
    other = await callers.call(keys[70:], similar)

    assert await asyncio.wait_for(small, HANG_S / 10) == answers(keys[7], b"new", keys[9])
    assert (one.done(), other.done(), similar.asked) == (False, False, [])
    large.end()
    assert await one == answers(*keys)
    assert await other == answers(*keys[70:])
    assert await callers.flights.run(keys[7:8], instant) == answers(keys[7])


async def test_a_caller_keeps_waiting_for_what_it_has_joined() -> None:
    """The caller keeps waiting although few of its keys are left, because a new computation would be no faster."""
    callers, large, late, here = Callers(), Computation(), Computation(), Computation()
    keys, fresh = [bytes([number]) for number in range(40)], [b"1st", b"2nd", b"3rd", b"4th", b"5th"]
    await callers.call(keys, large)
    await callers.call([b"late"], late)
    here.end()
    two = await callers.call([*keys[:4], *fresh, b"late"], here)
    late.end(DeadlineExceeded("late"))
    for _ in range(5):
        await asyncio.sleep(0)
    large.end()

    assert await two == answers(*keys[:4], *fresh, b"late")
    assert here.asked == [fresh, [b"late"]]
    with pytest.raises(DeadlineExceeded):
        await callers.tasks[1]


async def test_a_failure_reaches_everybody_who_waits_for_the_same() -> None:
    callers, failing = Callers(), Computation()
    tasks = [await callers.call([b"a", b"b"], failing) for _ in range(3)]
    failing.end(ScoringFailed("no"))

    for task in tasks:
        with pytest.raises(ScoringFailed, match="no"):
            await task
    assert failing.asked == [[b"a", b"b"]]
    assert await callers.flights.run([b"a"], instant) == answers(b"a")


async def test_a_failure_with_foreign_keys_is_retried() -> None:
    """A candidate of the other request may be to blame, so the caller computes its own keys separately."""
    callers, failing, here = Callers(), Computation(), Computation()
    one = await callers.call([b"bad", b"good"], failing)
    two = await callers.call([b"good"], here)
    here.end()
    failing.end(ScoringFailed("a bad candidate"))

    with pytest.raises(ScoringFailed):
        await one
    assert await two == answers(b"good")
    assert here.asked == [[b"good"]]


@pytest.mark.parametrize("error", [DeadlineExceeded("late"), TimeoutError(), Overloaded("full", retry_after_s=1.0)])
async def test_a_deadline_and_a_refusal_concern_the_starter_alone(error: Exception) -> None:
    """Other callers may have been admitted earlier; one of them computes the key, and the others wait for that."""
    callers, late, retried = Callers(), Computation(), Computation()
    one = await callers.call([b"a"], late)
    two = await callers.call([b"a", b"b"], retried)
    three = await callers.call([b"a"], retried)
    late.end(error)
    with pytest.raises(type(error)):
        await one
    retried.end()

    assert await two == answers(b"a", b"b")
    assert await three == answers(b"a")
    assert sorted(retried.asked) == [[b"a"], [b"b"]]


async def test_a_callers_own_deadline_is_raised() -> None:
    """A caller whose retry misses its deadline too gets the error of that retry."""
    callers, late, later = Callers(), Computation(), Computation()
    await callers.call([b"a"], late)
    two = await callers.call([b"a"], later)
    late.end(DeadlineExceeded("first"))
    later.end(DeadlineExceeded("second"))

    with pytest.raises(DeadlineExceeded, match="second"):
        await two
    with pytest.raises(DeadlineExceeded, match="first"):
        await callers.tasks[0]


async def test_a_computation_outlives_its_caller_while_others_wait() -> None:
    callers, computing = Callers(), Computation()
    one = await callers.call([b"a", b"b"], computing)
    two = await callers.call([b"b"], instant)
    one.cancel()
    await asyncio.wait([one])
    computing.end()

    assert await two == answers(b"b")
    assert (one.cancelled(), computing.cancelled) == (True, 0)


async def test_a_computation_that_nobody_waits_for_is_cancelled() -> None:
    """The computation is cancelled when its last caller leaves, and a later caller computes anew."""
    callers, computing = Callers(), Computation()
    tasks = [await callers.call([b"a"], computing) for _ in range(3)]
    for task in tasks:
        assert computing.cancelled == 0
        task.cancel()
        await asyncio.wait([task])
    found = await callers.flights.run([b"a"], instant)
    await until(lambda: computing.cancelled == 1)

    assert found == answers(b"a")


async def test_one_failure_ends_the_wait_for_the_others() -> None:
    """The caller's own computations are cancelled, too."""
    callers, elsewhere, here = Callers(), Computation(), Computation()
    await callers.call([b"a"], elsewhere)
    two = await callers.call([b"a", b"b"], here)
    elsewhere.end(ScoringFailed("no"))

    with pytest.raises(ScoringFailed):
        await two
    with pytest.raises(ScoringFailed):
        await callers.tasks[0]
    await until(lambda: here.cancelled == 1)


async def test_another_callers_deadline_does_not_end_a_computation() -> None:
    """The computation of the caller's other keys goes on, and the late key is computed besides."""
    callers, late, here = Callers(), Computation(), Computation()
    one = await callers.call([b"a"], late)
    two = await callers.call([b"a", b"b"], here)
    late.end(DeadlineExceeded("late"))
    await asyncio.wait([one])
    for _ in range(5):
        await asyncio.sleep(0)
    here.end()

    assert await two == answers(b"a", b"b")
    assert (here.asked, here.cancelled) == ([[b"b"], [b"a"]], 0)
    assert isinstance(one.exception(), DeadlineExceeded)


@given(st.integers(0, 2**32), st.booleans())
def test_many_callers_at_once(seed: int, failing: bool) -> None:
    """In any order, with cancellations and failures, no key is computed twice at a time, answers are right, an error is
    one that was raised, and every call returns.
    """
    rng = random.Random(seed)
    names = [bytes([letter]) for letter in b"abcdef"]
    under_way: set[bytes] = set()

    async def compute(keys: Keys) -> dict[bytes, bytes]:
        assert not under_way & set(keys)
        under_way.update(keys)
        try:
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            if failing and rng.random() < 0.3:
                raise rng.choice([ScoringFailed("no"), DeadlineExceeded("late")])
            return await instant(keys)
        finally:
            under_way.difference_update(keys)

    async def call(flights: SingleFlight) -> None:
        for _ in range(rng.randrange(8)):
            await asyncio.sleep(0)
        keys = rng.choices(names, k=rng.randint(1, 5))
        try:
            assert await flights.run(keys, compute) == answers(*keys)
        except (ScoringFailed, DeadlineExceeded):
            assert failing

    async def scenario() -> None:
        flights = SingleFlight()
        tasks = [asyncio.create_task(call(flights)) for _ in range(12)]
        for _ in range(rng.randrange(10)):
            await asyncio.sleep(0)
        gone = [task for task in tasks if rng.random() < 0.2 and task.cancel()]
        async with asyncio.timeout(HANG_S):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for task, result in zip(tasks, results, strict=True):
            assert result is None or (task in gone and isinstance(result, asyncio.CancelledError))

    asyncio.run(scenario())
