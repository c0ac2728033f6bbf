"""Token ids of recent texts: at GPU speed tokenising is the bottleneck, and candidates repeat."""

from __future__ import annotations  # array[int] cannot be evaluated before Python 3.12

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from bandrank.engine.cache.keys import digest

# Beside the ids: digest, array object, dictionary entry and links, as measured with tracemalloc on CPython 3.11.
ENTRY_BYTES = 350


class TokenCache:
    """A least-recently-used map from text to word-piece ids, bounded in bytes. Safe to share between threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._bytes = 0

    @property
    def num_bytes(self) -> int:
        """What the entries take."""
        return self._bytes

    def get_many(self, texts: Sequence[str]) -> list[array[int] | None]:
        """The ids of each text, None where it is not held."""
        keys = [digest(text) for text in texts]
        with self._lock:
            found = [self._entries.get(key) for key in keys]
            for key, ids in zip(keys, found, strict=True):
                if ids is not None:
                    self._entries.move_to_end(key)
        return found

    def put_many(self, texts: Sequence[str], ids: Sequence[array[int]]) -> None:
        """Holds the ids of each text, in place of the longest unused ones where room is short."""
        keys = [digest(text) for text in texts]
        with self._lock:
            for key, value in zip(keys, ids, strict=True):
                size = _size(value)
                if key in self._entries or size > self._max_bytes:
                    continue
                self._entries[key] = value
                self._bytes += size
            while self._bytes > self._max_bytes:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= _size(dropped)


def _size(ids: array[int]) -> int:
    return ENTRY_BYTES + ids.itemsize * len(ids)
