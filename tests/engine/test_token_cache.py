"""The cache of token ids: bounded in bytes, true to what it was given, and keeping what was used last."""

from __future__ import annotations  # array[int] cannot be evaluated before Python 3.12

from array import array

from hypothesis import given
from hypothesis import strategies as st

from bandrank.engine.token_cache import ENTRY_BYTES, TokenCache

TEXTS = st.text(alphabet="abc", max_size=2)  # few, so that they come again
BATCHES = st.lists(st.lists(TEXTS, min_size=1, max_size=4, unique=True), max_size=30)


def ids_of(text: str) -> array[int]:
    """Different ids for different texts, more of them for longer ones."""
    return array("i", [*map(ord, text)] * 40)


@given(BATCHES, st.integers(0, 5 * ENTRY_BYTES))
def test_the_bound_in_bytes_is_kept(batches: list[list[str]], max_bytes: int) -> None:
    """After every call; and `num_bytes` is what the held entries take."""
    cache = TokenCache(max_bytes)
    for texts in batches:
        cache.put_many(texts, [ids_of(text) for text in texts])
        assert cache.num_bytes <= max_bytes

    everything = sorted({text for texts in batches for text in texts})
    held = [ids for ids in cache.get_many(everything) if ids is not None]
    assert cache.num_bytes == sum(ENTRY_BYTES + 4 * len(ids) for ids in held)


@given(BATCHES, st.integers(0, 5 * ENTRY_BYTES))
def test_a_text_is_not_held_or_has_its_own_ids(batches: list[list[str]], max_bytes: int) -> None:
    """Never another text's."""
    cache = TokenCache(max_bytes)
    for texts in batches:
        for text, found in zip(texts, cache.get_many(texts), strict=True):
            assert found in (None, ids_of(text))
        cache.put_many(texts, [ids_of(text) for text in texts])


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=40), st.integers(1, 5))
def test_what_was_used_last_is_held(uses: list[str], capacity: int) -> None:
    """Of texts of equal size, exactly the `capacity` ones that were looked up or stored last."""
    size = ENTRY_BYTES + 4 * len(ids_of("a"))
    cache = TokenCache(capacity * size + size // 2)
    for text in uses:
        if cache.get_many([text]) == [None]:
            cache.put_many([text], [ids_of(text)])

    by_last_use = list(dict.fromkeys(reversed(uses)))
    found = cache.get_many(by_last_use)
    assert [ids is not None for ids in found] == [place < capacity for place in range(len(by_last_use))]


def test_ids_larger_than_the_cache_are_not_held() -> None:
    """And push nothing else out."""
    cache = TokenCache(2 * ENTRY_BYTES)
    small, large = array("i", [1]), array("i", range(ENTRY_BYTES))
    cache.put_many(["small"], [small])
    cache.put_many(["large"], [large])

    assert cache.get_many(["small", "large"]) == [small, None]


def test_a_cache_of_no_bytes_holds_nothing() -> None:
    """Which is how it is switched off."""
    cache = TokenCache(0)
    cache.put_many(["a"], [array("i")])

    assert (cache.get_many(["a"]), cache.num_bytes) == ([None], 0)
