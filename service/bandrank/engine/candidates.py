"""Texts registered by id, so that requests need not carry them; in Redis for all replicas, or in this process."""

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence

from bandrank.engine.cache.keys import BUCKETS, digest
from bandrank.engine.cache.redis_client import ENTRIES_AT_ONCE, READ_AT_ONCE, RedisClient, parts
from bandrank.errors import NotReady, StoreFull
from bandrank_kernels.grouping import runs_within

log = logging.getLogger(__name__)

# What an entry takes besides its two strings: its part of a dictionary that has just grown, and the rounding of the
# strings' sizes; the most that tracemalloc showed on CPython 3.11.
ENTRY_BYTES = 80


class CandidateStore:
    """A map from id to text, in which nothing expires.

    Without Redis it holds up to `max_bytes` of ids, texts and Python's overhead, in this process alone and until it
    ends.
    """

    def __init__(self, redis: RedisClient | None, *, max_bytes: int) -> None:
        self._redis = redis
        self._max_bytes = max_bytes
        self._texts: dict[str, str] = {}
        self._bytes = 0

    async def put_many(self, texts: Mapping[str, str]) -> None:
        """Registers texts; a known id gets the new text. Raises StoreFull, and NotReady if Redis does not store them.

        After an error some of the texts may be registered, each of them whole.
        """
        num_stored = 0
        for number, part in enumerate(parts(texts)):  # in parts, so as not to hold up the event loop
            if self._redis is None:
                if number:
                    await asyncio.sleep(0)
                self._remember(part)
                continue
            num_set = await self._redis.set_many({_key(name): part[name].encode() for name in part}, ttl_s=None)
            num_stored += num_set
            if num_set < len(part):
                stored = f"Redis stored {num_stored} of {len(texts)} candidates"
                if self._redis.full:
                    raise StoreFull(f"{stored} and is full; delete some, or ask the operator to give it more memory")
                raise NotReady(f"{stored}; send them again")

    async def get_many(self, ids: Sequence[str], hold: Callable[[int], None] = lambda _: None) -> list[str | None]:
        """The text of each id, None where it is not registered. Raises NotReady if Redis does not answer.

        hold: called with the size of texts in bytes before they are read; an error that it raises ends the call.
        """
        if self._redis is None or not ids:
            texts = [self._texts.get(name) for name in ids]
            for part in runs_within([len(text or "") for text in texts], READ_AT_ONCE):
                hold(sum(len(text.encode()) for text in texts[part] if text is not None))
                if part.stop < len(texts):
                    await asyncio.sleep(0)
            return texts
        values = await self._values(self._redis, [_key(name) for name in ids], hold)
        texts = [None if value is None else _decode(value) for value in values]
        if corrupt := sum(text is None and value is not None for text, value in zip(texts, values, strict=True)):
            log.warning("Redis has %d candidates that are not UTF-8; they count as not registered", corrupt)
        return texts

    async def _values(
        self, redis: RedisClient, keys: Sequence[bytes], hold: Callable[[int], None]
    ) -> list[bytes | None]:
        """The value of each key, read in parts of known size.

        Redis could not send too many large values in time, and after such failures everybody would leave it alone.
        """
        values: list[bytes | None] = []
        sizes = await redis.sizes(keys) or []
        for part in runs_within(sizes, READ_AT_ONCE):
            hold(sum(sizes[part]))
            read = await redis.get_many(keys[part], sum(sizes[part]))
            if read is None:
                break
            values += read
        if len(values) < len(keys):
            raise NotReady("Redis does not answer: candidates cannot be looked up by id; send their texts")
        return values

    async def delete_many(self, ids: Sequence[str]) -> int:
        """Deletes ids in parts; returns how many of them were registered.

        Raises NotReady if Redis does not answer; some ids may have been deleted by then.
        """
        deleted = 0
        for start in range(0, len(ids), ENTRIES_AT_ONCE):
            part = ids[start : start + ENTRIES_AT_ONCE]
            if self._redis is None:
                deleted += self._forget(part)
                await asyncio.sleep(0)
            elif (num_deleted := await self._redis.delete_many([_key(name) for name in part])) is not None:
                deleted += num_deleted
            else:
                raise NotReady(f"Redis does not answer: {deleted} candidates were deleted; send the ids again")
        return deleted

    def _remember(self, texts: Mapping[str, str]) -> None:
        size = self._bytes + sum(_size(name, text) for name, text in texts.items())
        size -= sum(_size(name, self._texts[name]) for name in texts if name in self._texts)
        if size > self._max_bytes:
            raise StoreFull(
                f"registered candidates would take {size} bytes (limit {self._max_bytes}); delete some, or ask the "
                "operator to change the setting redis_url or candidate_store_bytes"
            )
        self._texts.update(texts)
        self._bytes = size

    def _forget(self, ids: Sequence[str]) -> int:
        texts = [(name, self._texts.pop(name)) for name in dict.fromkeys(ids) if name in self._texts]
        self._bytes -= sum(_size(name, text) for name, text in texts)
        return len(texts)


def _key(name: str) -> bytes:
    return b"bandrank:candidate:{%02x}:" % (digest(name)[0] % BUCKETS) + name.encode()


def _decode(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _size(name: str, text: str) -> int:
    return ENTRY_BYTES + _string_bytes(name) + _string_bytes(text)


def _string_bytes(text: str) -> int:
    """The memory of a string, with the UTF-8 copy that it keeps beside its characters once a library asks for one.

    The size is that of a new string, so it does not depend on whether the copy exists yet.
    """
    return sys.getsizeof("\0" + text) + (0 if text.isascii() else len(text.encode()))
