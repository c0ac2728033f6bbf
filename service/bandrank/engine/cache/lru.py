"""A bounded map in memory: the least recently used entries make room for new ones."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """A least-recently-used map from keys to values, bounded in bytes. Threads may share it.

    entry_bytes: the size of an entry given its key and value, including what the map itself needs for it.
    """

    def __init__(self, max_bytes: int, entry_bytes: Callable[[bytes, Value], int]) -> None:
        self._max_bytes, self._entry_bytes = max_bytes, entry_bytes
        self._lock = threading.Lock()  # less than 0.1 us a call when no other thread holds it
        self._entries: OrderedDict[bytes, Value] = OrderedDict()
        self._bytes = 0

    @property
    def num_bytes(self) -> int:
        """The size of all entries, at most `max_bytes`."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get_many(self, keys: Sequence[bytes]) -> list[Value | None]:
        """The value of each key, None where the cache has none; looking a key up counts as using it."""
        with self._lock:
            values = [self._entries.get(key) for key in keys]
            for key, value in zip(keys, values, strict=True):
                if value is not None:
                    self._entries.move_to_end(key)
        return values

    def put_many(self, entries: Mapping[bytes, Value]) -> int:
        """Adds entries, dropping the least recently used ones for room; returns by how many bytes the cache has grown.

        An entry larger than the cache is left out. A key always stands for the same value, so one that is already
        cached counts as used and is not replaced.
        """
        with self._lock:
            before = self._bytes
            for key, value in entries.items():
                size = self._entry_bytes(key, value)
                if key in self._entries:
                    self._entries.move_to_end(key)
                elif size <= self._max_bytes:
                    self._entries[key] = value
                    self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= self._entry_bytes(*self._entries.popitem(last=False))
            return self._bytes - before
