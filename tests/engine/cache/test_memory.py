"""The tier in memory: bounded in bytes, true to what it was given, and keeping what was used last."""

from hypothesis import given
from hypothesis import strategies as st

from bandrank.engine.cache.memory import ENTRY_BYTES, MemoryTier

KEYS = st.sampled_from([bytes([letter]) * 16 for letter in b"abcdefgh"])  # few, so that they come again
BATCHES = st.lists(st.lists(KEYS, min_size=1, max_size=4), max_size=30)


def payload_of(key: bytes) -> bytes:
    """Different payloads for different keys, of different sizes."""
    return key * (key[0] - ord("a"))


def size_of(key: bytes) -> int:
    """What an entry takes."""
    return ENTRY_BYTES + len(key) + len(payload_of(key))


@given(BATCHES, st.integers(0, 5 * ENTRY_BYTES))
def test_the_bound_in_bytes_is_kept(batches: list[list[bytes]], max_bytes: int) -> None:
    """After every call; sizes and numbers are those of what is held."""
    tier = MemoryTier(max_bytes)
    for keys in batches:
        tier.put_many({key: payload_of(key) for key in keys})
        assert tier.num_bytes <= max_bytes

    everything = sorted({key for keys in batches for key in keys})
    held = [key for key, payload in zip(everything, tier.get_many(everything), strict=True) if payload is not None]
    assert (tier.num_bytes, tier.num_entries) == (sum(map(size_of, held)), len(held))


@given(BATCHES, st.integers(0, 5 * ENTRY_BYTES))
def test_a_key_is_not_held_or_has_its_own_payload(batches: list[list[bytes]], max_bytes: int) -> None:
    """Never another's; keys that come twice are answered twice."""
    tier = MemoryTier(max_bytes)
    for keys in batches:
        for key, found in zip(keys, tier.get_many(keys), strict=True):
            assert found in (None, payload_of(key))
        tier.put_many({key: payload_of(key) for key in keys})


@given(st.lists(st.sampled_from(range(7)), min_size=1, max_size=40), st.integers(1, 5))
def test_what_was_used_last_is_held(uses: list[int], capacity: int) -> None:
    """Of entries of equal size, exactly the `capacity` ones that were looked up or put last."""
    entry = ENTRY_BYTES + 16 + 100
    tier = MemoryTier(capacity * entry + entry // 2)
    for use in uses:
        if use % 2 or tier.get_many([bytes([use]) * 16]) == [None]:
            tier.put_many({bytes([use]) * 16: bytes(100)})

    by_last_use = list(dict.fromkeys(reversed(uses)))
    found = tier.get_many([bytes([use]) * 16 for use in by_last_use])
    assert [payload is not None for payload in found] == [place < capacity for place in range(len(by_last_use))]


def test_an_entry_larger_than_the_tier_is_not_held() -> None:
    """And pushes nothing else out."""
    tier = MemoryTier(2 * ENTRY_BYTES)
    tier.put_many({b"small": b"1"})
    tier.put_many({b"large": bytes(2 * ENTRY_BYTES)})

    assert tier.get_many([b"small", b"large"]) == [b"1", None]


def test_a_tier_of_no_bytes_holds_nothing() -> None:
    """Which is how it is switched off."""
    tier = MemoryTier(0)
    tier.put_many({b"a": b""})

    assert (tier.get_many([b"a"]), tier.num_bytes, tier.num_entries) == ([None], 0, 0)
