"""Large searches and answers are read off the event loop, one at a time, in bounded memory."""

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.tasks import HANG_S

from bandrank.api.pace import Pace
from bandrank.engine.clients import Client
from bandrank.proxy.hits import Placed, SearchAnswer
from bandrank.proxy.large_json import SMALL_BYTES, LargeJson
from bandrank.proxy.raw_json import MAX_MEMBERS, Reader, read_document, read_members, read_roughly, read_value

ONE, OTHER = Client("one"), Client("other")
LARGE = SMALL_BYTES + 1


@asynccontextmanager
async def large_json() -> AsyncIterator[LargeJson]:
    work = LargeJson(Pace())
    try:
        yield work
    finally:
        work.close()


async def test_what_is_large_is_read_in_another_thread() -> None:
    """What is small is read on the event loop, which takes less time than a change of threads."""
    here = threading.get_ident()
    async with large_json() as work:
        assert await work.run(ONE, SMALL_BYTES, threading.get_ident) == here
        assert await work.run(ONE, LARGE, threading.get_ident) != here
        with pytest.raises(ValueError, match="Expecting value"):
            await work.run(ONE, LARGE, json.loads, "x" * LARGE)


async def test_one_is_read_at_a_time_and_the_smaller_go_first() -> None:
    """The order does not depend on the client; work that is cancelled while it waits is never run."""
    done: list[str] = []
    held, hold = threading.Event(), threading.Event()

    def wait() -> None:
        held.set()
        hold.wait(HANG_S)

    async with large_json() as work:
        first = asyncio.create_task(work.run(ONE, LARGE, wait))
        await asyncio.to_thread(held.wait, HANG_S)
        sizes = {"larger": (ONE, 9 * LARGE), "gone": (ONE, 2 * LARGE), "large": (OTHER, 3 * LARGE)}
        waiting = {
            name: asyncio.create_task(work.run(client, size, done.append, name))
            for name, (client, size) in sizes.items()
        }
        await asyncio.sleep(0)
        assert await work.run(ONE, 1, str, 7) == "7"
        waiting.pop("gone").cancel()
        hold.set()
        await asyncio.gather(first, *waiting.values())

    assert done == ["large", "larger"]


def test_a_wide_character_does_not_make_an_answer_four_times_as_large() -> None:
    """Where one hit has a wide character, the others still take one byte per character as they are read and written."""
    sources = [{"body": "man " * 20_000} for _ in range(20)]
    sources[7]["body"] += "🐝"
    body = json.dumps({"hits": {"hits": [{"_source": source} for source in sources]}}, ensure_ascii=False).encode()

    tracemalloc.start()
    try:
        answer = SearchAnswer(body, max_hits=20)
        written = answer.write([Placed(index) for index in range(20)], added=())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert written == body
    assert peak < 4.5 * len(body)  # the text, its values, the pieces that are written, and the whole
    assert answer.texts(["body"])[7].endswith("man 🐝")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1.50", "1.50"),
        ("12345678901234567890", "12345678901234567890"),
        ("[1.0, [2e3], true, null]", "1.0 2e3"),
        ('["man", 7]', "man 7"),
        ('{"name": 0.10}', "0.10"),
        ('"man"', "man"),
        ("9" * 5000, "9" * 5000),
    ],
    ids=lambda value: value[:30],
)
def test_numbers_that_are_texts_are_as_they_are_written(value: str, text: str) -> None:
    """Numbers in other fields, such as vectors, are read faster and rounded."""
    source = f'{{"vector": [0.10, 1], "title": {value}}}'
    answer = SearchAnswer(f'{{"hits": {{"hits": [{{"_source": {source}}}]}}}}'.encode(), 1)

    assert answer.texts(["title", "title.name"]) == [text]


def test_an_object_with_too_many_members_is_read_no_further() -> None:
    """The first member beyond the limit is not even parsed."""
    members = ",".join(f'"{number}":1' for number in range(MAX_MEMBERS))
    assert len(read_document(f"{{{members}}}", read_members)) == MAX_MEMBERS
    with pytest.raises(ValueError, match="no more than 1024 members"):
        read_document(f'{{{members},"x":no JSON', read_members)


def test_an_answer_with_too_many_hits_is_read_no_further() -> None:
    """The first hit beyond the limit is not even parsed."""
    with pytest.raises(ValueError, match="no more than 2 elements"):
        SearchAnswer(b'{"hits": {"hits": [{}, {}, no JSON', max_hits=2)


@pytest.mark.parametrize("read", [read_value, read_roughly])
async def test_the_loop_goes_round_while_numbers_are_read(read: Reader) -> None:
    """The thread that reads them gives up the interpreter's lock now and then."""
    text = f"[{'1,0.5,' * 250_000}0]"
    rounds = 0
    async with large_json() as work:
        reading = asyncio.create_task(work.run(ONE, len(text), read, text, 0))
        while not reading.done():
            rounds += 1
            await asyncio.sleep(0.001)

    assert rounds >= 5  # two or three, if the lock is kept
