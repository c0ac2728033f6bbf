"""The log: one whole record a line, whatever clients send."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from bandrank.logs import LogFormat, handler_of, request_id

NASTY = 'a\nb\r\nc\x1b[31m\x00\u2028d \ud800 "é" \\'


@contextmanager
def logger(log_format: LogFormat) -> Iterator[logging.Logger]:
    """A logger that writes to stderr in this format and has no parent to hand its records to."""
    log = logging.Logger("tests.logs", logging.INFO)
    log.addHandler(handler_of(log_format))
    none = request_id.set("")  # an earlier test may have left one
    try:
        yield log
    finally:
        request_id.reset(none)


def fail() -> None:
    """Raises an error whose message has a second line that looks like a record."""
    raise ValueError("first\n2026-01-01T00:00:00.000Z ERROR bandrank: forged")


def test_json_has_a_record_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A record has its time in UTC, level, logger, message and extra fields, which cannot replace the level."""
    before = datetime.now(UTC)
    with logger("json") as log:
        log.info("%s", NASTY, extra={"path": NASTY, "num": 3, "names": ["a"], "kind": dict, "level": "forged"})
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)

    assert record.pop("time").endswith("Z")
    assert before.timestamp() - 0.001 <= datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    assert record == {
        "level": "INFO",
        "logger": "tests.logs",
        "message": NASTY,
        "path": NASTY,
        "num": 3,
        "names": ["a"],
        "kind": "<class 'dict'>",
    }


@pytest.mark.parametrize(("size", "count"), [(40, 2000), (10_000, 30)])
def test_a_log_that_nobody_reads_holds_nobody(monkeypatch: pytest.MonkeyPatch, size: int, count: int) -> None:
    """Records for which there is no room are lost; the next one that is written tells how many. No line is torn, save
    one of several pages that had begun.
    """
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as stderr, open(reader, "rb", buffering=0) as log_file:
        monkeypatch.setattr(sys, "stderr", stderr)
        with logger("json") as log:
            for _ in range(count):
                log.info("x" * size)
            begun = log_file.read(1 << 20).decode()
            log.info("after")
            after = [json.loads(line)["message"] for line in log_file.read(1 << 20).decode().splitlines() if line]

    *whole, last = begun.split("\n")
    assert {json.loads(line)["message"] for line in whole} == {"x" * size}
    assert (last == "") == (size == 40)
    lost = count - len(whole)
    assert after == [f"{lost} records before this one were lost: nobody read the log", "after"]


def test_json_has_an_exception_as_one_string(capsys: pytest.CaptureFixture[str]) -> None:
    with logger("json") as log:
        try:
            fail()
        except ValueError:
            log.exception("failed")
    (line,) = capsys.readouterr().err.splitlines()

    exception = json.loads(line)["exception"]
    assert exception.startswith("Traceback (most recent call last):\n")
    assert exception.endswith("forged")


def test_text_has_a_record_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A record has time, level, logger, message and fields; what breaks a line or steers a terminal is escaped."""
    with logger("text") as log:
        log.warning("%s", NASTY, extra={"path": "/a b=c", "client": "127.0.0.1", "bytes": 12})
    (line,) = capsys.readouterr().err.splitlines()

    time, rest = line.split(" ", 1)
    assert datetime.fromisoformat(time).tzinfo == UTC
    message = 'a\\nb\\r\\nc\\x1b[31m\\x00\\u2028d \\ud800 "é" \\'
    assert rest == f'WARNING tests.logs: {message} path="/a b=c" client=127.0.0.1 bytes=12'


def test_text_indents_an_exception(capsys: pytest.CaptureFixture[str]) -> None:
    """Indented lines of a traceback cannot pass for records."""
    with logger("text") as log:
        try:
            fail()
        except ValueError:
            log.exception("failed")
    first, *lines = capsys.readouterr().err.splitlines()

    assert first.endswith("ERROR tests.logs: failed")
    assert lines[0] == "  Traceback (most recent call last):"
    assert lines[-1] == "  2026-01-01T00:00:00.000Z ERROR bandrank: forged"
    assert all(line.startswith("  ") for line in lines)


@pytest.mark.parametrize(("log_format", "shown"), [("json", '"request_id": "abc"'), ("text", " request_id=abc")])
def test_a_record_has_the_id_of_its_request(
    log_format: LogFormat, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with logger(log_format) as log:
        log.info("without")
        token = request_id.set("abc")
        log.info("with")
        request_id.reset(token)
    without, with_id = capsys.readouterr().err.splitlines()

    assert "request_id" not in without
    assert shown in with_id


def test_what_libraries_say_is_json_too() -> None:
    """Libraries that bring handlers of their own, and Python's warnings, use the format of the log, and say it once."""
    program = """
import logging, warnings
from contextlib import suppress
from pathlib import Path
from bandrank import logs
from bandrank.models import hf
logs.configure("info", "json")
with suppress(ValueError):
    hf.load(Path())
logging.getLogger("transformers.models").warning("one")
logging.getLogger("huggingface_hub.utils").warning("two")
warnings.warn_explicit("three", UserWarning, "module.py", 1)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert [json.loads(line)["message"].split()[-1] for line in ended.stderr.splitlines()] == ["one", "two", "three"]
