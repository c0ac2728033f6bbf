"""The table of errors in docs/api.md: every status and `error_type` that the service answers with, and no other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from starlette.types import Message
from support.app import running_app
from support.scorers import lookup

from bandrank.api.only_probes import refuse
from bandrank.errors import BandrankError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def listed() -> set[tuple[int, str]]:
    """The pairs of status and type in the table; a single status or type of a row goes with each of the others."""
    _, _, after = PAGE.partition("| status | `error_type` | |\n| --- | --- | --- |\n")
    pairs: set[tuple[int, str]] = set()
    for row in after.partition("\n\n")[0].splitlines():
        statuses, types = (re.findall(r"\w+", cell) for cell in row.split("|")[1:3])
        count = max(len(statuses), len(types))
        each = (names * count if len(names) == 1 else names for names in (statuses, types))
        pairs |= {(int(status), kind) for status, kind in zip(*each, strict=True)}
    return pairs


def raised(kind: type[BandrankError] = BandrankError) -> Iterator[tuple[int, str]]:
    """The status and type of an error class and of all its subclasses."""
    yield kind.status, kind.error_type
    for each in kind.__subclasses__():
        yield from raised(each)


async def too_many() -> tuple[int, str]:
    """The status and type with which a connection beyond the limit is refused."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    await refuse({"type": "http"}, receive, send)
    start, body = sent
    return start["status"], json.loads(body["body"])["error_type"]


async def test_the_table_has_every_error() -> None:
    """Errors come from the service's exceptions, from the framework, and from the limit on connections."""
    async with running_app(lookup()) as running:
        answers = [await running.client.get("/nowhere"), await running.client.delete("/rerank")]
    framework = {(answer.status_code, answer.json()["error_type"]) for answer in answers}

    assert listed() == {*raised(), *framework, await too_many()}
