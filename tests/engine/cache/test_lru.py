"""The cache in memory is bounded in bytes, returns what it was given, and keeps what was used last."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandrank.engine.cache.lru import LruCache

ENTRY_BYTES = 100  # that every entry takes besides its key and payload

KEYS = st.sampled_from([bytes([letter]) * 16 for letter in b"abcdefgh"])  # few, so that keys repeat
BATCHES = st.lists(st.lists(KEYS, min_size=1, max_size=4), max_size=30)


def payload_of(key: bytes) -> bytes:
    """Each key has a payload of its own, and their sizes differ."""
    return key * (key[0] - ord("a"))


def entry_bytes(key: bytes, payload: bytes) -> int:
    """The size of an entry, counted as the caches of representations and of token ids count theirs."""
    return ENTRY_BYTES + len(key) + len(payload)


def cache_of(max_bytes: int) -> LruCache[bytes]:
    return LruCache(max_bytes, entry_bytes)


@given(BATCHES, st.integers(0, 5 * ENTRY_BYTES))
def test_the_bound_in_bytes_is_kept(batches: list[list[bytes]], max_bytes: int) -> None:
    """The bound holds after every call, and in the end size and count are those of the entries held."""
    cache = cache_of(max_bytes)
    for keys in batches:
        cache.put_many({key: payload_of(key) for key in keys})
        assert cache.num_bytes <= max_bytes

    everything = sorted({key for keys in batches for key in keys})
    held = [key for key, payload in zip(everything, cache.get_many(everything), strict=True) if payload is not None]
    assert (cache.num_bytes, len(cache)) == (sum(entry_bytes(key, payload_of(key)) for key in held), len(held))


@given(BATCHES, st.integers(0, 5 * ENTRY_BYTES))
def test_no_key_gets_the_payload_of_another(batches: list[list[bytes]], max_bytes: int) -> None:
    """No key gets another's payload; a key that is asked for twice is answered twice."""
    cache = cache_of(max_bytes)
    for keys in batches:
        for key, found in zip(keys, cache.get_many(keys), strict=True):
            assert found in (None, payload_of(key))
        cache.put_many({key: payload_of(key) for key in keys})


@given(st.lists(st.sampled_from(range(7)), min_size=1, max_size=40), st.integers(1, 5))
def test_what_was_used_last_is_held(uses: list[int], capacity: int) -> None:
    entry = ENTRY_BYTES + 16 + 100
    cache = cache_of(capacity * entry + entry // 2)
    for use in uses:
        if use % 2 or cache.get_many([bytes([use]) * 16]) == [None]:
            cache.put_many({bytes([use]) * 16: bytes(100)})

    by_last_use = list(dict.fromkeys(reversed(uses)))
    found = cache.get_many([bytes([use]) * 16 for use in by_last_use])
    assert [payload is not None for payload in found] == [index < capacity for index in range(len(by_last_use))]


def test_an_entry_larger_than_the_cache_is_not_held() -> None:
    """An oversized entry pushes no other one out."""
    cache = cache_of(2 * ENTRY_BYTES)
    cache.put_many({b"small": b"1"})
    cache.put_many({b"large": bytes(2 * ENTRY_BYTES)})

    assert cache.get_many([b"small", b"large"]) == [b"1", None]


def test_a_cache_of_no_bytes_holds_nothing() -> None:
    """A size of 0 is how a cache is switched off."""
    cache = cache_of(0)
    cache.put_many({b"a": b""})

    assert (cache.get_many([b"a"]), cache.num_bytes, len(cache)) == ([None], 0, 0)


@pytest.fixture
def threads_that_interleave() -> Iterator[None]:
    """Makes the interpreter switch between threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("threads_that_interleave")
def test_threads_may_share_a_cache() -> None:
    cache = cache_of(12 * ENTRY_BYTES)

    def use(start: int) -> None:
        for number in range(start, start + 2000):
            keys = [b"%d" % (step * number % 40) for step in range(1, 8)]
            cache.put_many({key: key for key in keys})
            assert all(found in (None, key) for key, found in zip(keys, cache.get_many(keys), strict=True))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))

    keys = [b"%d" % number for number in range(40)]
    held = [key for key in cache.get_many(keys) if key is not None]
    assert (cache.num_bytes, len(cache)) == (sum(entry_bytes(key, key) for key in held), len(held))
