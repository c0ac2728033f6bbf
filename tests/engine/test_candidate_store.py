"""The store of registered candidates in this process: it counts all of the memory that it takes."""

import tracemalloc

import pytest
from support.models import tiny_tokenizer

from bandrank.engine.candidates import CandidateStore
from bandrank.errors import StoreFull

pytestmark = pytest.mark.anyio

COUNT = 10_000
TEXTS = {"nothing": "", "ascii": "man", "cyrillic": "\u0436" * 20, "chinese": "\u4e2d" * 50, "emoji": "\U0001f9ea" * 9}


async def fill(store: CandidateStore, text: str) -> None:
    """Registers COUNT short ids, each with a text of its own, as uploads do."""
    for start in range(0, COUNT, 250):
        await store.put_many({str(number): f"{text}{number}" for number in range(start, start + 250)})


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_the_bound_is_one_of_memory(text: str) -> None:
    """A store that is allowed nine tenths of what these candidates hold does not hold them."""
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
    """All of it, even if a library has made the strings larger in the meantime."""
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
