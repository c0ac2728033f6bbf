"""Large searches and answers: read beside the event loop, one at a time, in bounded memory."""

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
from bandrank.proxy.raw_json import MAX_MEMBERS, read_document, read_members

pytestmark = pytest.mark.anyio

ONE, OTHER = Client("one"), Client("other")
LARGE = SMALL_BYTES + 1


@asynccontextmanager
async def large_json() -> AsyncIterator[LargeJson]:
    """One that is closed at the end."""
    work = LargeJson(Pace())
    try:
        yield work
    finally:
        work.close()


async def test_what_is_large_is_read_in_another_thread() -> None:
    """And what is small on the event loop, which takes less than going there and back."""
    here = threading.get_ident()
    async with large_json() as work:
        assert await work.run(ONE, SMALL_BYTES, threading.get_ident) == here
        assert await work.run(ONE, LARGE, threading.get_ident) != here
        with pytest.raises(ValueError, match="Expecting value"):
            await work.run(ONE, LARGE, json.loads, "x" * LARGE)


async def test_one_is_read_at_a_time_and_the_smaller_go_first() -> None:
    """However many wait, and whoever sent them; who gives up takes no turn."""
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
    """Where one is in a hit, the others are still read and written with a byte for each of their characters."""
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
    assert peak < 4.5 * len(body)  # the text, its values, and what is written, in pieces and as a whole
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
    """Though numbers that nobody asks for, as those of vectors, are read faster and rounded."""
    source = f'{{"vector": [0.10, 1], "title": {value}}}'
    answer = SearchAnswer(f'{{"hits": {{"hits": [{{"_source": {source}}}]}}}}'.encode(), 1)

    assert answer.texts(["title", "title.name"]) == [text]


def test_an_object_with_too_many_members_is_read_no_further() -> None:
    """The first of them too many is not even looked at."""
    members = ",".join(f'"{number}":1' for number in range(MAX_MEMBERS))
    assert len(read_document(f"{{{members}}}", read_members)) == MAX_MEMBERS
    with pytest.raises(ValueError, match="no more than 1024 members"):
        read_document(f'{{{members},"x":no JSON', read_members)


def test_an_answer_with_too_many_hits_is_read_no_further() -> None:
    """However many there are: what one of them holds is not even looked at."""
    with pytest.raises(ValueError, match="no more than 2 elements"):
        SearchAnswer(b'{"hits": {"hits": [{}, {}, no JSON', max_hits=2)
