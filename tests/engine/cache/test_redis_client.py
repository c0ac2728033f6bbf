"""Calls to a Redis whose answers the test controls: what counts against it, and what does not."""

import asyncio
import math
import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import OutOfMemoryError, ReadOnlyError
from support.scripted_redis import ScriptedCommands, scripted
from support.tasks import until

from bandrank.engine.cache.redis_client import BYTES_AT_ONCE, ENTRIES_AT_ONCE, MAX_CONNECTIONS, RedisClient, parts
from bandrank.engine.cache.redis_url import parse_redis_url
from bandrank.engine.candidates import CandidateStore
from bandrank.errors import NotReady, StoreFull
from bandrank.metrics import Metrics

SHORT_S = 0.01


@pytest.mark.parametrize(
    "error", [ConnectionError("gone"), OSError(5, "io"), RuntimeError("a bug"), TimeoutError(), AttributeError("None")]
)
async def test_whatever_goes_wrong_is_not_raised(error: Exception) -> None:
    async with scripted() as one:
        calls = [
            asyncio.create_task(call)
            for call in (
                one.client.get_many([b"a"]),
                one.client.set_many({b"a": b""}, ttl_s=1.0),
                one.client.delete_many([b"a"]),
            )
        ]
        await until(lambda: len(one.commands.answers) == 3)
        for answer in one.commands.answers:
            answer.set_exception(error)

        assert await asyncio.gather(*calls) == [None, 0, None]
        for operation in ("get", "set", "delete"):
            labels = {"operation": operation}
            assert one.metrics.registry.get_sample_value("bandrank_redis_errors_total", labels) == 1


async def test_after_three_failures_nothing_is_asked_until_the_cool_down_is_over() -> None:
    """After the cool-down one call is made as a probe, and once it is answered all calls are made again."""
    async with scripted() as one:
        await one.fail(3)
        assert (one.state, one.client.available) == (2, False)
        assert await one.client.get_many([b"a"]) is None
        assert await one.client.set_many({b"a": b""}, ttl_s=None) == 0
        assert len(one.commands.answers) == 3

        one.clock.now += 1.0
        assert one.client.available
        probe = await one.ask()
        assert one.state == 1
        assert await one.client.get_many([b"a"]) is None
        one.commands.answers[-1].set_result([b"1"])
        assert await probe == [b"1"]
        assert one.state == 0
        task = await one.ask()
        one.commands.answers[-1].set_result([None])
        assert await task == [None]


async def test_a_read_that_takes_too_long_fails() -> None:
    """The late reply changes nothing."""
    async with scripted(SHORT_S) as one:
        task = await one.ask()
        assert await task is None
        one.commands.answers[0].set_result([b"late"])
        await asyncio.sleep(0)

        assert one.errors == 1
        assert one.commands.cancelled == 0


async def test_reads_started_before_an_answer_do_not_open_the_breaker() -> None:
    """A process that is slow to read its replies gets the first ones in time and the last ones late."""
    async with scripted() as one:
        tasks = [await one.ask() for _ in range(10)]
        one.commands.answers[0].set_result([b"in time"])
        assert await tasks[0] == [b"in time"]
        for answer in one.commands.answers[1:]:
            answer.set_exception(TimeoutError())
        await asyncio.gather(*tasks)
        assert (one.errors, one.state) == (9, 0)

        await one.fail(3)
        assert (one.errors, one.state) == (12, 2)


async def test_a_successful_write_does_not_hide_reads_that_are_too_slow() -> None:
    """A write has so much time that its success says little."""
    async with scripted() as one:
        for _ in range(3):
            await one.fail()
            await one.write()

        assert one.state == 2


async def test_writes_that_succeed_do_not_bring_back_reads_that_are_too_slow() -> None:
    """After the cool-down writes are made, but the next read decides; if it fails, the cool-down doubles."""
    async with scripted() as one:
        await one.fail(3)
        for cooldown in (1.0, 2.0, 4.0, 8.0):
            one.clock.now += cooldown - 0.1
            assert await one.write() == 0
            one.clock.now += 0.1
            assert [await one.write() for _ in range(3)] == [1, 1, 1]
            assert one.state == 2
            await one.fail()

        one.clock.now += 16.0
        await one.recover()


async def test_a_write_that_is_under_way_does_not_keep_a_read_from_probing() -> None:
    """The write may take long, and may fail afterwards."""
    async with scripted() as one:
        await one.fail(3)
        one.clock.now += 1.0
        write = asyncio.create_task(one.client.set_many({b"a": b"1"}, ttl_s=1.0))
        await until(lambda: len(one.commands.answers) == 4)
        probe = await one.ask()
        assert one.state == 1
        one.commands.answers[4].set_result([b"1"])
        assert await probe == [b"1"]
        one.commands.answers[3].set_exception(ConnectionError("broken"))

        assert await write == 0
        assert one.state == 0


async def test_writes_recover_by_themselves_where_nobody_reads() -> None:
    """The first write after the cool-down is the probe, and the cool-down doubles if it fails."""
    async with scripted() as one:
        for _ in range(3):
            assert await one.write(ConnectionError("broken")) == 0
        assert one.state == 2
        one.clock.now += 1.0
        assert await one.write(ConnectionError("broken")) == 0
        one.clock.now += 1.0
        assert not one.client.available
        one.clock.now += 1.0

        assert await one.write() == 1
        assert one.state == 0


async def test_time_in_which_the_process_was_busy_is_not_held_against_redis() -> None:
    """The reply was there in time, but the process was too busy to read it."""
    async with scripted(0.05) as one:
        task = await one.ask()
        asyncio.get_running_loop().call_later(0.01, one.commands.answers[0].set_result, [b"1"])
        started = time.thread_time()
        while time.thread_time() < started + 0.2:
            pass

        assert await task == [b"1"]
        assert one.errors == 0


async def test_further_calls_wait_for_their_turn() -> None:
    async with scripted() as one:
        tasks = [asyncio.create_task(one.client.get_many([b"a"])) for _ in range(3 * MAX_CONNECTIONS)]
        await until(lambda: len(one.commands.answers) == MAX_CONNECTIONS)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(one.commands.answers) == MAX_CONNECTIONS
        for index in range(3 * MAX_CONNECTIONS):
            await until(lambda: len(one.commands.answers) > index)  # noqa: B023  # awaited at once
            one.commands.answers[index].set_result([b"1"])

        assert await asyncio.gather(*tasks) == [[b"1"]] * len(tasks)


async def test_a_turn_that_does_not_come_in_time_fails() -> None:
    """A call that gave up waiting does not use up a turn later."""
    async with scripted(SHORT_S) as one:
        held = [await one.ask() for _ in range(MAX_CONNECTIONS)]
        waited = await asyncio.gather(*held, one.client.get_many([b"a"]))
        assert waited == [None] * (MAX_CONNECTIONS + 1)
        for answer in one.commands.answers:
            answer.set_result([b"late"])
        one.clock.now += 1.0
        await asyncio.sleep(0)
        task = await one.ask()
        one.commands.answers[-1].set_result([b"1"])

        assert await task == [b"1"]


async def test_a_probe_that_gets_no_turn_says_nothing_of_redis() -> None:
    """Calls from before the breaker opened say nothing either if they fail beside the probe: the cool-down does not
    grow.
    """
    async with scripted(SHORT_S) as one:
        held = [asyncio.create_task(one.client.get_many([b"a"])) for _ in range(MAX_CONNECTIONS)]
        await asyncio.gather(*held)
        assert (one.state, len(one.commands.answers)) == (2, MAX_CONNECTIONS)
        one.clock.now += 1.0
        assert await one.client.get_many([b"a"]) is None
        assert (one.state, len(one.commands.answers)) == (2, MAX_CONNECTIONS)
        for answer in one.commands.answers:
            answer.set_exception(ConnectionError("late"))
        await one.recover()


async def test_closing_ends_calls_that_are_under_way() -> None:
    """Those that wait for their turn ask nothing after that."""
    async with scripted() as one:
        tasks = [await one.ask() for _ in range(MAX_CONNECTIONS)]
        tasks += [asyncio.create_task(one.client.get_many([b"a"])) for _ in range(MAX_CONNECTIONS + 1)]
        await asyncio.sleep(0)
        await one.client.close()

        assert await asyncio.gather(*tasks) == [None] * len(tasks)
        assert len(one.commands.answers) == one.commands.cancelled == MAX_CONNECTIONS
        assert await one.client.get_many([b"a"]) is None


async def test_entries_that_are_refused_are_not_set() -> None:
    """The other entries are set, and the breaker stays closed."""
    async with scripted() as one:
        for _ in range(5):
            write = asyncio.create_task(one.client.set_many({b"a": b"", b"b": b"", b"c": b""}, ttl_s=0.0001))
            asked = len(one.commands.answers)
            await until(lambda: len(one.commands.answers) > asked)  # noqa: B023  # awaited at once
            one.commands.answers[-1].set_result([ValueError("full")])
            assert await write == 2

        assert one.state == 0


async def test_deletions_that_are_refused_do_not_end_reads() -> None:
    """A replica refuses them, and answers reads."""
    async with scripted() as one:
        for number in range(5):
            deletion = asyncio.create_task(one.client.delete_many([b"a"]))
            await until(lambda: deletion.done() or len(one.commands.answers) > number)  # noqa: B023  # awaited at once
            one.commands.answers[number].set_exception(ReadOnlyError("a replica"))
            assert await deletion is None

        assert one.state == 0


async def test_redis_that_was_full_and_is_gone_is_not_called_full() -> None:
    """Clients are told that they may send their candidates again (503), not that there is no room for them (507)."""
    async with scripted() as one:
        store = CandidateStore(one.client, max_bytes=0)
        for answer, error in ([OutOfMemoryError("full")], StoreFull), (ConnectionError("gone"), NotReady):
            write = asyncio.create_task(store.put_many({"a": "text"}))
            asked = len(one.commands.answers)
            await until(lambda: len(one.commands.answers) > asked)  # noqa: B023  # awaited at once
            reply = one.commands.answers[-1]
            reply.set_exception(answer) if isinstance(answer, Exception) else reply.set_result(answer)
            with pytest.raises(error):
                await write


class SlowCommands(ScriptedCommands):
    """Takes 1 ms for each entry and 1 s for each BYTES_AT_ONCE, without really waiting, and times out after 2 s."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[bytes, bytes] = {}
        self.num_calls = 0
        self.fails_after = math.inf

    async def set_many(self, entries: Mapping[bytes, bytes], ttl_ms: int | None) -> list[Exception]:
        del ttl_ms
        self.num_calls += 1
        if self.num_calls > self.fails_after:
            raise ConnectionError("gone")
        if 0.001 * len(entries) + sum(map(len, entries.values())) / BYTES_AT_ONCE > 2.0:
            raise TimeoutError
        self.stored |= entries
        return []


def slow_client(commands: SlowCommands) -> RedisClient:
    return RedisClient(parse_redis_url("redis://slow"), commands, timeout_s=1.0, metrics=Metrics())


@pytest.mark.parametrize(("count", "size"), [(150_000, 1), (20, 1_000_000), (0, 0)])
async def test_a_large_write_has_the_time_of_its_parts(count: int, size: int) -> None:
    """Each part has its own timeout, so any number of entries and bytes is stored and known to be."""
    commands = SlowCommands()
    client, store = slow_client(commands), CandidateStore(slow_client(commands), max_bytes=0)
    entries = {b"%d" % number: b"x" * size for number in range(count)}

    assert await client.set_many(entries, ttl_s=None) == count
    assert commands.stored == entries
    await store.put_many({str(number): "x" * size for number in range(count)})
    assert len(commands.stored) == 2 * count


async def test_a_write_that_stops_midway_says_how_far_it_came() -> None:
    commands = SlowCommands()
    commands.fails_after = 3
    client = slow_client(commands)

    assert await client.set_many({b"%d" % number: b"" for number in range(2000)}, ttl_s=None) == 3 * ENTRIES_AT_ONCE
    assert commands.num_calls == 4
    commands.num_calls = 0
    with pytest.raises(NotReady, match=f"stored {3 * ENTRIES_AT_ONCE} of 2000 "):
        await CandidateStore(client, max_bytes=0).put_many({str(number): "" for number in range(2000)})


@given(st.dictionaries(st.binary(max_size=8), st.integers(0, 3 * BYTES_AT_ONCE // 2).map(bytes), max_size=6))
def test_parts_are_the_whole_in_order(entries: dict[bytes, bytes]) -> None:
    """Each part is within the bound on bytes or has a single entry."""
    in_parts = list(parts(entries))

    assert [item for part in in_parts for item in part.items()] == list(entries.items())
    assert all(len(part) == 1 or sum(map(len, (*part, *part.values()))) <= BYTES_AT_ONCE for part in in_parts)
