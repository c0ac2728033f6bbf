"""Request ids and the access log, which tell what answer and what line of the log belong to a request."""

import asyncio
import logging

import httpx
import pytest
from support.app import ask_and_hang_up, running_app
from support.poison import BUG, Buggy
from support.scorers import lookup
from support.stderr import logging_to_stderr

from bandrank.logs import ACCESS

BODY = {"query": "who", "candidates": ["man"]}


@pytest.mark.parametrize("brought", ["a", "0f-_.Z" * 21])
async def test_an_id_that_a_client_brings_is_kept(brought: str) -> None:
    async with running_app(lookup()) as running:
        answer = await running.client.get("/healthz", headers={"X-Request-Id": brought})

    assert answer.headers.get_list("x-request-id") == [brought]


@pytest.mark.parametrize("brought", [None, "", "a" * 129, "a b", 'a"b', "é", "a\tb", "a/b", "a\n"])
async def test_a_missing_or_malformed_id_is_replaced(brought: str | None) -> None:
    headers = {} if brought is None else {b"X-Request-Id": brought.encode()}
    async with running_app(lookup()) as running:
        ids = [(await running.client.get("/healthz", headers=headers)).headers["x-request-id"] for _ in range(2)]

    assert ids[0] != ids[1]
    assert all(len(each) == 32 and each.isalnum() for each in ids)


async def test_every_answer_carries_an_id() -> None:
    """Errors carry an id too, whichever part of the service finds them."""
    async with running_app(Buggy(lookup(), lambda _: None)) as running:
        answers = [
            await running.rerank(BODY),
            await running.rerank({}),
            await running.rerank(BUG),
            await running.client.get("/nothing"),
            await running.client.get("/rerank"),
            await running.client.post("/rerank", content=b"x", headers={"content-type": "text/plain"}),
        ]

    assert [answer.status_code for answer in answers] == [200, 422, 500, 404, 405, 415]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 6


async def test_the_log_names_the_request_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of an unexpected error carries the id of its request, and not that of another at the same time."""
    async with running_app(Buggy(lookup(), lambda _: None)) as running:

        async def ask(name: str, body: object) -> httpx.Response:
            return await running.client.post("/rerank", json=body, headers={"X-Request-Id": name})

        with logging_to_stderr():
            await asyncio.gather(ask("good", BODY), ask("bad", BUG), ask("good", BODY))
    said = capsys.readouterr().err

    (line,) = [line for line in said.splitlines() if "failed unexpectedly" in line]
    assert line.endswith(" request_id=bad")
    assert "request_id=good" not in said


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("traceparent", "trace"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"01-{TRACE}-00f067aa0ba902b7-01-later", TRACE),
        (f"ff-{TRACE}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}-00f067aa0ba902b7", None),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        ("", None),
    ],
)
async def test_the_log_names_the_trace(capsys: pytest.CaptureFixture[str], traceparent: str, trace: str | None) -> None:
    """Lines of the log carry the id of the trace that W3C's `traceparent` names, if this header is well formed."""
    async with running_app(Buggy(lookup(), lambda _: None)) as running:
        with logging_to_stderr():
            answer = await running.client.post("/rerank", json=BUG, headers={"traceparent": traceparent})

    (line,) = [line for line in capsys.readouterr().err.splitlines() if "failed unexpectedly" in line]
    own = f" request_id={answer.headers['x-request-id']}"
    assert line.endswith(f"{own} trace_id={trace}" if trace else own)


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """The fields of the access log, less the milliseconds."""
    names = ("method", "path", "status", "client", "bytes")
    return [{name: vars(record)[name] for name in names} for record in caplog.records if record.name == ACCESS]


async def test_the_access_log_has_a_line_for_each_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A line has the method, the path without its query, status, milliseconds, client, and bytes of the answer."""
    async with running_app(Buggy(lookup(), lambda _: None)) as running:
        with caplog.at_level(logging.INFO, logger=ACCESS):
            answers = [
                await running.client.get("/healthz?token=secret"),
                await running.rerank(BODY),
                await running.rerank(BUG),
                await running.client.get("/" + "x" * 1000),
            ]

    expected = [
        ("GET", "/healthz", 200),
        ("POST", "/rerank", 200),
        ("POST", "/rerank", 500),
        ("GET", "/" + "x" * 511, 404),
    ]
    assert logged(caplog) == [
        {"method": method, "path": path, "status": status, "client": "127.0.0.1", "bytes": len(answer.content)}
        for (method, path, status), answer in zip(expected, answers, strict=True)
    ]
    assert all(vars(record)["ms"] >= 0 for record in caplog.records if record.name == ACCESS)


async def test_a_client_that_hangs_up_is_499_in_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    async with running_app(lookup()) as running:
        with caplog.at_level(logging.INFO, logger=ACCESS):
            part = {"type": "http.request", "body": b"{", "more_body": True}
            await ask_and_hang_up(running.app, [part], hung_up=lambda: asyncio.sleep(0))

    assert [fields["status"] for fields in logged(caplog)] == [499]
