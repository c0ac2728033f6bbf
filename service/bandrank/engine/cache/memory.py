"""The tier in memory: payloads of the candidates used last, within a number of bytes."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

# Beside key and payload: two objects, dictionary entry and links; the most that tracemalloc saw on CPython 3.11.
ENTRY_BYTES = 180


class MemoryTier:
    """A least-recently-used map from key to payload, bounded in bytes; used from the event loop alone."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    @property
    def num_bytes(self) -> int:
        """What the entries take."""
        return self._bytes

    @property
    def num_entries(self) -> int:
        """How many there are."""
        return len(self._entries)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The payload of each key, None where it is not held."""
        entries = self._entries
        found = [entries.get(key) for key in keys]
        for key, payload in zip(keys, found, strict=True):
            if payload is not None:
                entries.move_to_end(key)
        return found

    def put_many(self, payloads: Mapping[bytes, bytes]) -> None:
        """Holds payloads by key, in place of the longest unused ones where room is short.

        A key always stands for the same payload: one that is held is used, not replaced.
        """
        for key, payload in payloads.items():
            size = _size(key, payload)
            if key in self._entries:
                self._entries.move_to_end(key)
            elif size <= self._max_bytes:
                self._entries[key] = payload
                self._bytes += size
        while self._bytes > self._max_bytes:
            key, payload = self._entries.popitem(last=False)
            self._bytes -= _size(key, payload)


def _size(key: bytes, payload: bytes) -> int:
    return ENTRY_BYTES + len(key) + len(payload)
