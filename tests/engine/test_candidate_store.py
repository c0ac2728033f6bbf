"""The store of registered candidates counts all the memory that it takes, and never holds up the event loop."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Sequence
from typing import cast

import pytest
from support.tokenizer import tiny_tokenizer

from bandrank.engine.cache.redis_client import ENTRIES_AT_ONCE, READ_AT_ONCE, RedisClient
from bandrank.engine.candidates import CandidateStore
from bandrank.errors import InputTooLarge, NotReady, StoreFull

COUNT = 10_000
TEXTS = {"nothing": "", "ascii": "man", "cyrillic": "\u0436" * 20, "chinese": "\u4e2d" * 50, "emoji": "\U0001f9ea" * 9}


async def fill(store: CandidateStore, text: str) -> None:
    """Registers COUNT candidates with short ids and distinct texts, 250 at a time, as uploads do."""
    for start in range(0, COUNT, 250):
        await store.put_many({str(number): f"{text}{number}" for number in range(start, start + 250)})


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_the_bound_is_one_of_memory(text: str) -> None:
    """A store that may hold nine tenths of the memory that these candidates take refuses some of them."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = CandidateStore(None, max_bytes=2**40)
        await fill(store, text)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    with pytest.raises(StoreFull):
        await fill(CandidateStore(None, max_bytes=held * 9 // 10), text)
    await fill(CandidateStore(None, max_bytes=2 * held), text)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_what_is_deleted_or_replaced_makes_room(text: str) -> None:
    """All of the room is freed, even if a library has made the strings larger in the meantime."""
    store, tokenizer = CandidateStore(None, max_bytes=2000), tiny_tokenizer()
    for _ in range(20):
        texts = {"\u0436": text * 2, "id": text}
        await store.put_many(texts)
        for kept in texts.values():
            tokenizer.encode(kept)  # keeps a string's UTF-8 form beside its characters
        await store.put_many({"\u0436": text})
        assert await store.delete_many(["\u0436", "id", "unknown"]) == 2
    with pytest.raises(StoreFull):
        await store.put_many({"id": "man" * 700})
    await store.put_many({"id": "man" * 600})


async def turns_during(work: Awaitable[object]) -> int:
    doing = asyncio.ensure_future(work)
    turns = 0
    while not doing.done():
        turns += 1
        await asyncio.sleep(0)
    await doing
    return turns


async def test_many_deletions_leave_turns_to_others() -> None:
    store = CandidateStore(None, max_bytes=2**40)
    await fill(store, "man")
    deletion = asyncio.ensure_future(store.delete_many([f"{number}" for number in range(2 * COUNT)]))

    assert await turns_during(deletion) >= 2 * COUNT / ENTRIES_AT_ONCE
    assert await deletion == COUNT


async def test_many_registrations_leave_turns_to_others() -> None:
    """The event loop has a turn after every few hundred; candidates registered before the store is full stay."""
    texts = {f"{number}": "man" for number in range(COUNT)}
    store, small = CandidateStore(None, max_bytes=2**40), CandidateStore(None, max_bytes=100_000)

    assert await turns_during(store.put_many(texts)) >= COUNT / ENTRIES_AT_ONCE
    assert await store.get_many([*texts]) == ["man"] * COUNT
    with pytest.raises(StoreFull):
        await small.put_many(texts)
    assert await small.delete_many([*texts]) == 2 * ENTRIES_AT_ONCE


async def test_large_texts_leave_turns_to_others() -> None:
    """The event loop has a turn after each MiB, and a text that cannot be held ends the call before the next one."""
    store, held = CandidateStore(None, max_bytes=2**40), list[int]()
    texts = {f"{number}": "\u0436" * READ_AT_ONCE for number in range(10)}
    await store.put_many(texts)

    def hold(size: int) -> None:
        held.append(size)
        if len(held) > 12:
            raise InputTooLarge("no room")

    assert await turns_during(store.get_many([*texts, "unknown"], hold)) >= 10
    assert held == [2 * READ_AT_ONCE] * 10
    with pytest.raises(InputTooLarge):
        await store.get_many([*texts], hold)
    assert len(held) == 13


class Redis:
    """Has a MiB under every id, and answers only so many calls. read, deleted: how many keys each call had."""

    def __init__(self, *, reads: int = 100, deletions: int = 0) -> None:
        self.read: list[int] = []
        self.deleted: list[int] = []
        self._reads, self._deletions = reads, deletions

    async def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """The size of each key's value in bytes."""
        return [READ_AT_ONCE] * len(keys)

    async def get_many(self, keys: Sequence[bytes], num_bytes: int = 0) -> list[bytes | None] | None:
        """The text of each key, or None once the reads are used up; `num_bytes` must be their size."""
        assert num_bytes == READ_AT_ONCE * len(keys)
        self.read.append(len(keys))
        return [b"x" * READ_AT_ONCE] * len(keys) if len(self.read) <= self._reads else None

    async def delete_many(self, keys: Sequence[bytes]) -> int | None:
        """The number of keys, or None once the deletions are used up."""
        self.deleted.append(len(keys))
        return len(keys) if len(self.deleted) <= self._deletions else None


async def test_texts_are_counted_before_they_are_read() -> None:
    redis, room = Redis(), 3 * READ_AT_ONCE

    def hold(size: int) -> None:
        nonlocal room
        room -= size
        if room < 0:
            raise InputTooLarge("no room")

    store = CandidateStore(cast("RedisClient", redis), max_bytes=0)
    with pytest.raises(InputTooLarge):
        await store.get_many([f"{number}" for number in range(100)], hold)

    assert redis.read == [1, 1, 1]


async def test_a_redis_that_stops_to_answer_is_no_text_that_is_missing() -> None:
    """The request fails with NotReady, and Redis is asked for no further texts."""
    redis = Redis(reads=2)
    store = CandidateStore(cast("RedisClient", redis), max_bytes=0)
    with pytest.raises(NotReady, match="Redis does not answer"):
        await store.get_many([f"{number}" for number in range(10)], lambda _: None)

    assert redis.read == [1, 1, 1]


async def test_deletions_reach_redis_in_parts() -> None:
    """If Redis stops answering, the error says how many candidates were deleted, and no further part is sent."""
    redis = Redis(deletions=2)
    store = CandidateStore(cast("RedisClient", redis), max_bytes=0)
    with pytest.raises(NotReady, match=rf": {2 * ENTRIES_AT_ONCE} candidates were deleted; send the ids again"):
        await store.delete_many([f"{number}" for number in range(10 * ENTRIES_AT_ONCE)])

    assert redis.deleted == [ENTRIES_AT_ONCE] * 3
