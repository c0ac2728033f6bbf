"""Streams of lines to register: limits on a line and on all that waits, and errors that say what is stored."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from support.app import ask_and_hang_up, assert_error, running_app
from support.scorers import LookupScorer, encoded_lookup, lookup

from bandrank.api import candidate_lines
from bandrank.engine.cache.representations import RepresentationCache
from bandrank.engine.registry import CandidateRegistry
from bandrank.errors import Overloaded, TooSlow
from bandrank.settings import Settings

NDJSON = {"content-type": "application/x-ndjson"}


def line(name: str, text: str) -> bytes:
    return json.dumps({"id": name, "text": text}).encode() + b"\n"


async def stream(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_long_lines_are_stored_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a mebibyte and one line more, or 256 short lines, wait before they are stored."""
    sizes: list[tuple[int, int]] = []
    register = CandidateRegistry.register

    async def watch(registry: CandidateRegistry, texts: Mapping[str, str], **more: Any) -> int:
        sizes.append((len(texts), sum(map(len, texts.values()))))
        return await register(registry, texts, **more)

    monkeypatch.setattr(CandidateRegistry, "register", watch)
    lines = [line(f"{n}", "x" * 400_000) for n in range(10)] + [line(f"s{n}", "man") for n in range(600)]
    async with running_app(lookup()) as running:
        response = await running.client.put("/candidates", content=stream(*lines), headers=NDJSON)

    assert response.json()["registered"] == 610
    assert sum(count for count, _ in sizes) == 610
    assert max(size for _, size in sizes) <= 1_200_000
    assert max(count for count, _ in sizes) == 256


async def test_lines_that_are_sent_wrongly_are_told_how() -> None:
    """Lines need their own Content-Type, and come uncompressed."""
    lines = line("a", "man") + line("b", "man")
    async with running_app(lookup()) as running:
        as_json = await running.client.put("/candidates", content=lines)
        compressed = await running.client.put("/candidates", content=gzip.compress(lines), headers=NDJSON)

    assert assert_error(as_json, 422, "invalid_input").endswith(
        "PUT /candidates also takes lines, as application/x-ndjson"
    )
    assert compressed.json()["errors"][0]["error"].endswith("it is compressed: send it uncompressed")


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_a_line_is_bounded(end: bytes) -> None:
    """The limit holds for a line with an end and for one without; a line of just that size is accepted."""
    settings = Settings(device="cpu", max_line_bytes=100)
    just = line("a", "x" * 77)
    assert len(just) == 101
    async with running_app(lookup(), settings=settings) as running:
        fits = await running.client.put("/candidates", content=stream(just[:50], just[50:]), headers=NDJSON)
        body = stream(just[:50], just[50:-1], b" " + end)
        beyond = await running.client.put("/candidates", content=body, headers=NDJSON)

    assert fits.json()["registered"] == 1
    assert assert_error(beyond, 413, "input_too_large").startswith("a line is longer than 100 bytes;")


@pytest.mark.parametrize("scorer", [lookup(), encoded_lookup(man=1.0)], ids=["texts", "representations"])
async def test_a_stop_ends_a_stream_and_says_what_is_stored(scorer: LookupScorer) -> None:
    """A stream may have hours to go, so no stop waits for its end; lines that were read are stored, and encoded if need
    be.
    """
    async with running_app(scorer) as running:

        async def endless() -> AsyncIterator[bytes]:
            for number in range(10_000):
                if number == 200:
                    running.service.stop()
                yield line(f"{number}", "man")

        response = await running.client.put("/candidates", content=endless(), headers=NDJSON)
        stored = await running.service.registry.store.get_many(["200", "201"])

    assert assert_error(response, 503, "not_ready").endswith("try another replica (the first 201 lines are registered)")
    assert stored == ["man", None]


async def test_what_has_come_does_not_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are registered after a moment of silence, and also while others come now and then."""
    monkeypatch.setattr(candidate_lines, "QUIET_S", 0.02)
    async with running_app(lookup()) as running:
        store = running.service.registry.store

        async def halting() -> AsyncIterator[bytes]:
            yield line("a", "man")
            while await store.get_many(["a"]) != ["man"]:  # noqa: ASYNC110  # what the test is about
                await asyncio.sleep(0.005)
            for number in range(1_000_000):
                yield line(f"{number}", "she")
                await asyncio.sleep(0.005)
                if await store.get_many(["0"]) == ["she"]:
                    return

        async with asyncio.timeout(20):
            response = await running.client.put("/candidates", content=halting(), headers=NDJSON)

    assert response.json()["errors"] == []
    assert 2 < response.json()["registered"] < 256


@pytest.mark.parametrize("seconds", [100.0, 0.005], ids=["silence", "drops"])
async def test_a_stream_that_is_too_slow_is_told_what_is_stored(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this error, a slow stream's connection would end without an answer."""
    monkeypatch.setattr(candidate_lines, "QUIET_S", 0.02)
    monkeypatch.setattr(candidate_lines, "PATIENCE_S", 0.3)
    lines = [line(f"{number}", "man") for number in range(300)]
    async with running_app(lookup()) as running:

        async def slow() -> AsyncIterator[bytes]:
            for each in lines:
                yield each
            while True:
                await asyncio.sleep(seconds)
                yield b"\n"

        async with asyncio.timeout(20):
            response = await running.client.put("/candidates", content=slow(), headers=NDJSON)
        stored = await running.service.registry.store.get_many(["299"])

    message = assert_error(response, 408, "too_slow")
    assert message.startswith("less than 4096 bytes came in 0.3 s; ")
    assert int(message.split("(the first ")[1].split()[0]) >= 300
    assert stored == ["man"]


@pytest.mark.parametrize(("patience_s", "slow_s", "pause_s"), [(0.5, 0.7, 0.0), (8.0, 0.006, 0.004)])
async def test_a_stream_is_not_slow_while_it_waits_to_be_read(
    patience_s: float, slow_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the time counts during which the service waits for the stream. What it reads ahead keeps its place."""
    monkeypatch.setattr(candidate_lines, "PATIENCE_S", patience_s)
    monkeypatch.setattr(candidate_lines, "QUIET_S", 0.003)
    register = CandidateRegistry.register

    async def slowly(registry: CandidateRegistry, texts: Mapping[str, str], **more: Any) -> int:
        await asyncio.sleep(slow_s)
        return await register(registry, texts, **more)

    monkeypatch.setattr(CandidateRegistry, "register", slowly)
    async with running_app(lookup()) as running:
        body = b"".join(line(f"{number}", "man") for number in range(600))

        async def halting() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 501):
                await asyncio.sleep(pause_s)
                yield body[start : start + 501]

        response = await running.client.put("/candidates", content=halting(), headers=NDJSON)

    assert response.json() == {"registered": 600, "encoded": 0, "num_errors": 0, "errors": []}


@pytest.mark.parametrize(("size", "slow"), [(2048, False), (2047, True)])
def test_progress_is_of_the_last_seconds(size: int, slow: bool) -> None:
    """Bytes that came earlier do not help a stream that is slow now."""
    progress = candidate_lines._Progress()
    progress.received(1 << 20)
    for _ in range(50):
        progress.waited(candidate_lines.PATIENCE_S / 2)
        progress.received(size)
    with pytest.raises(TooSlow) if slow else nullcontext():
        progress.check()


async def test_a_stop_does_not_wait_for_a_stream_that_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the service stops, lines that were refused are tried once more, at once."""
    register = CandidateRegistry.register
    refused: list[int] = []

    async with running_app(lookup()) as running:

        async def refuse_once(registry: CandidateRegistry, texts: Mapping[str, str], **more: Any) -> int:
            if not refused:
                refused.append(len(texts))
                asyncio.get_running_loop().call_later(0.05, running.service.stop)
                raise Overloaded("others go before", retry_after_s=30.0)
            return await register(registry, texts, **more)

        monkeypatch.setattr(CandidateRegistry, "register", refuse_once)
        lines = [line(f"{number}", "man") for number in range(257)]
        async with asyncio.timeout(10):
            response = await running.client.put("/candidates", content=stream(*lines), headers=NDJSON)

    assert refused == [256]
    assert "(the first 256 lines are registered)" in assert_error(response, 503, "not_ready")


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "midway"])
async def test_a_stream_that_waits_for_room_ends_with_its_client(
    whole: bool, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the client hangs up, its lines are not tried again and its memory is freed, be the body read to its end or
    not, and though chunks came in the meantime.
    """
    refused = asyncio.Event()

    async def refuse(*_: Any, **__: Any) -> int:
        refused.set()
        raise Overloaded("others go before", retry_after_s=30.0)

    monkeypatch.setattr(CandidateRegistry, "register", refuse)
    body = b"".join(line(f"{number}", "man") for number in range(candidate_lines.LINES_AT_ONCE))
    messages = [{"type": "http.request", "body": body, "more_body": True} for _ in range(chunks)]
    messages[-1]["more_body"] = not whole
    async with running_app(lookup()) as running, asyncio.timeout(10):
        asked: Any = {"path": "/candidates", "method": "PUT", "headers": [(b"content-type", b"application/x-ndjson")]}
        sent = await ask_and_hang_up(running.app, messages, hung_up=refused.wait, **asked)
        scraped = await running.scrape()

    assert sent[0]["status"] == 499
    assert scraped.value("bandrank_memory_in_flight_bytes") == 0


async def test_what_was_encoded_before_a_stream_waits_for_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that were encoded before the refusal are found in the cache at the next try."""
    compute_missing = RepresentationCache.compute_missing
    calls = 0

    async def refuse_the_second(*args: Any, **kwargs: Any) -> dict[bytes, bytes]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Overloaded("others go before", retry_after_s=0.0)
        return await compute_missing(*args, **kwargs)

    monkeypatch.setattr(RepresentationCache, "compute_missing", refuse_the_second)
    monkeypatch.setattr("bandrank.engine.representation_source.ROWS_AT_ONCE", 8)
    lines = [line(f"{number}", f"man {number}") for number in range(10)]
    async with running_app(encoded_lookup(man=1.0)) as running:
        response = await running.client.put("/candidates", content=stream(*lines), headers=NDJSON)

    assert response.json() == {"registered": 10, "encoded": 10, "num_errors": 0, "errors": []}
    assert calls > 2


async def test_a_failure_midway_says_what_is_stored() -> None:
    """All lines before the one that is too long are stored, but for those that cannot be read, and the client can go on
    after them.
    """
    settings = Settings(device="cpu", max_line_bytes=1000)
    lines = [line(f"{n}", "man") for n in range(300)]
    lines.insert(1, b"{not json\n")
    lines.insert(3, b"{nor this\n")
    async with running_app(lookup(), settings=settings) as running:
        body = stream(*lines, b"[late]\n", b"x" * 1001)
        response = await running.client.put("/candidates", content=body, headers=NDJSON)
        ranked = await running.rerank({"query": "who", "candidates": [{"id": f"{n}"} for n in range(300)]})

    message = assert_error(response, 413, "input_too_large")
    assert "(the first 303 lines are registered but for 3 that could not be read, such as line 2: " in message
    assert len(ranked.json()["results"]) == 300


async def test_a_full_store_midway_says_what_is_stored() -> None:
    settings = Settings(device="cpu", candidate_store_bytes=1_000_000)
    lines = [line(f"{n}", "x" * 1000) for n in range(2000)]
    async with running_app(lookup(), settings=settings) as running:
        response = await running.client.put("/candidates", content=stream(*lines), headers=NDJSON)

    assert re.search(r"\(the first [1-9]\d* lines are registered\)", assert_error(response, 507, "store_full"))


async def test_a_stream_lets_others_have_the_interpreter_between_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service pauses after every few hundred lines of a chunk, however often it registers lines in between."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def counted(seconds: float, *more: object) -> None:
        pauses.append(seconds)
        await sleep(seconds, *more)

    monkeypatch.setattr(candidate_lines.asyncio, "sleep", counted)
    num_lines = 20 * candidate_lines.LINES_AT_ONCE
    body = b'{"id": "again", "text": "man"}\n' * num_lines
    async with running_app(lookup()) as running:
        answer = await running.client.put("/candidates", content=body, headers=NDJSON)

    assert answer.status_code == 200
    effort = num_lines * candidate_lines.LINE_EFFORT
    assert pauses.count(candidate_lines.PAUSE_S) >= effort // candidate_lines.MAX_EFFORT - 1 > 10
