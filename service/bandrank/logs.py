"""Logging to stderr, as lines of text or JSON.

Some values come from clients: none can end a line or pass for another record.
"""

import json
import logging
import os
import re
import select
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]
ACCESS = "bandrank.access"  # the logger of answered requests
PATIENCE_S = 0.1  # with a reader of the log that is behind
OWN_HANDLERS = ("transformers", "huggingface_hub")  # libraries that would write lines of their own format

# The ids of the request that the current task answers and of the trace it belongs to, if any.
request_id: ContextVar[str] = ContextVar("request_id", default="")
trace_id: ContextVar[str] = ContextVar("trace_id", default="")


def configure(level: str, log_format: LogFormat, *, access_log: bool = False) -> None:
    """Logs the records and warnings of all libraries from `level` up and, if `access_log`, each answered request.

    Leaves a process that has handlers of its own with these.
    """
    logging.basicConfig(level=level.upper(), handlers=[handler_of(log_format)])
    logging.captureWarnings(capture=True)
    drop_own_handlers()
    logging.getLogger(ACCESS).setLevel(logging.INFO if access_log else logging.CRITICAL + 1)


def drop_own_handlers() -> None:
    """Leaves what the libraries imported so far log to the handlers of all."""
    for name in OWN_HANDLERS:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True


def handler_of(log_format: LogFormat) -> logging.Handler:
    """A handler that writes records to stderr, each with the ids of the request and of the trace that it belongs to."""
    handler = StderrHandler()
    handler.addFilter(_add_ids)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    return handler


def tell_why(message: str, log_format: LogFormat) -> None:
    """Writes to stderr why a command ends: one line or, in JSON, a record."""
    if log_format == "text":
        print(f"bandrank: {message}", file=sys.stderr)  # noqa: T201 - for people, without the time
        return
    record = logging.makeLogRecord({"name": "bandrank", "levelname": "CRITICAL", "msg": message})
    handler_of("json").handle(record)  # logging may not be configured yet


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes records to stderr, unless nobody reads it: a full pipe would hold every thread that logs, for ever.

    A record that finds no room for PATIENCE_S is lost, and so are those that follow until there is room again. The next
    one that is written comes behind a record of how many were lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lost, self._broken = 0, False  # _broken: whether the last line has no end

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, or loses it."""
        try:
            descriptor = self.stream.fileno()
        except (OSError, ValueError):  # it is no file
            super().emit(record)
            return
        try:
            records = [self._of_lost(), record] if self._lost else [record]
            lines = ([""] if self._broken else []) + [self.format(each) for each in records]
            text = "".join(line + self.terminator for line in lines).encode("utf-8", "backslashreplace")
            written = _write(descriptor, text, 0.0 if self._lost else PATIENCE_S)
            if written:
                self._broken = written < len(text)
            self._lost = 0 if written == len(text) else self._lost + 1
        except Exception:  # noqa: BLE001 - as the library does
            self.handleError(record)

    def _of_lost(self) -> logging.LogRecord:
        said = "%d records before this one were lost: nobody read the log"
        facts = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": said}
        return logging.makeLogRecord(facts | {"args": (self._lost,)})


def _write(descriptor: int, text: bytes, patience_s: float) -> int:
    """Writes to a file part by part, and returns how many bytes were written before one found no room for so long."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    for start in range(0, len(text), select.PIPE_BUF):  # a pipe with any room takes so many
        try:
            if not poll.poll(1000 * patience_s):
                return start
            os.write(descriptor, text[start : start + select.PIPE_BUF])
        except BlockingIOError:
            return start
    return len(text)


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object: time, level, logger, message, extra fields, and its exception as one string."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _trace(self, record):
            line["exception"] = trace
        return json.dumps(line | _fields(record) | line, default=str)


class TextFormatter(logging.Formatter):
    """Writes a record as a line: time, level, logger, message, extra fields; its exception follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {_escaped(record.getMessage())}{fields}"
        return "\n  ".join([line, *map(_escaped, _trace(self, record).splitlines())])


# The attributes of every record, and uvicorn's copy of its message in colour.
NO_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
PLAIN = re.compile(r"[\w.:/-]+", re.ASCII)


def _add_ids(record: logging.LogRecord) -> bool:
    for each in (request_id, trace_id):
        if known := each.get():
            setattr(record, each.name, known)
    return True


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in NO_FIELDS}


def _time(record: logging.LogRecord) -> str:
    """The record's time in UTC (RFC 3339)."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The record's exception with its traceback; empty if it has none."""
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _escaped(text: str) -> str:
    """The text with unprintable characters escaped, as in Python."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _quoted(value: object) -> str:
    """The value as it is if that is unambiguous, else as JSON."""
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(value, default=str)
