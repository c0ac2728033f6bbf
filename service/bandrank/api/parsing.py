"""Reads and validates bodies; endpoints read them themselves, to bound their size."""

import math
from codecs import BOM_UTF8
from collections.abc import Collection
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from bandrank.api.faults import in_words
from bandrank.api.pace import Pace
from bandrank.engine.memory import Account
from bandrank.errors import InputTooLarge, InvalidInput, UnsupportedMedia

Kind = TypeVar("Kind")  # a model, or a dataclass
Json = bytes | bytearray

GZIP = b"\x1f\x8b"  # how compressed bodies begin
QUOTE, MANY_QUOTES = ord('"'), 1 << 14
NO_STRUCTURE = bytes(set(range(256)) - set(b'",:[{'))  # characters that no count needs
PART_BYTES = 1 << 18  # counted at once, in a millisecond or two
READERS: dict[type, TypeAdapter[Any]] = {}  # by kind, as they take a while to make

JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
# The rest of a body that is too large is read and thrown away, up to this many times the limit, so that the client gets
# the answer instead of a broken pipe.
DRAIN_FACTOR = 8
# The most values in a body, field names included; an object or a list counts as LIST_VALUES, for the memory it takes.
# pydantic reads that many in half a second, and turns those beside a fault into Python objects, holding the
# interpreter lock: a thread would not help.
MAX_VALUES, LIST_VALUES = 5 << 18, 4
FEW_FIELDS = 1 << 16  # the most in a body whose kind needs no more; their names take longest
# Memory that reading a body takes besides its bytes: for each byte, texts that may be copied; for each value, objects.
TEXT_BYTES, VALUE_BYTES = 2, 64


def media_type(request: Request, also: Collection[str] = ()) -> str:
    """The media type of the body: application/json or one of `also`. Raises UnsupportedMedia.

    Browsers ask for permission before a page sends these types to another site, but not before it sends text or a form.
    So no page can use a service that does not let it. The type may be missing unless a browser says that a page sent
    it.
    """
    headers = request.headers
    if (encoding := headers.get("content-encoding", "identity").strip().lower()) not in {"", "identity"}:
        raise UnsupportedMedia(f"Content-Encoding {encoding[:40]!r}: send the body uncompressed")
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    from_page = "origin" in headers or headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
    if not kind and not from_page:
        return JSON
    if kind != JSON and kind not in also:
        raise UnsupportedMedia(f"Content-Type {kind[:40]!r}: send {' or '.join((JSON, *also))}")
    return kind


async def read_json(
    request: Request, kind: type[Kind], max_bytes: int, account: Account, pace: Pace, *, max_fields: float = FEW_FIELDS
) -> Kind:
    """The validated request in a body of JSON, which is not one for a ranking.

    Raises what `read_body` raises, and InvalidInput.
    """
    body = await read_body(request, max_bytes, account, max_fields)
    content = await pace.run(account.client, load, body)
    return await pace.run(account.client, validated, kind, content)


async def read_body(request: Request, max_bytes: int, account: Account, max_fields: float = FEW_FIELDS) -> bytearray:
    """A whole body of JSON. The account holds it as it arrives, and then what parsing it will take.

    Raises InputTooLarge if it has more than `max_bytes`, and keeps none of it then; InvalidInput if it has too many
    values or fields; and what `media_type` and `Account.hold` raise.
    """
    media_type(request)
    too_large = f"the body is larger than {max_bytes} bytes; send fewer or shorter candidates per request"
    waits = request.headers.get("expect", "").lower() == "100-continue"
    if waits and int(request.headers.get("content-length", 0)) > max_bytes:
        raise InputTooLarge(too_large)  # before the client is asked for the body
    body = bytearray()  # grows in place: joining the chunks at the end would hold the event loop, and twice the memory
    counts, size = Counts(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= max_bytes:
            account.hold(len(chunk))
            body += chunk
            counts.add(chunk)
        else:
            body.clear()
            if size > DRAIN_FACTOR * max_bytes:
                break
    if size > max_bytes:
        raise InputTooLarge(too_large)
    counts.check(max_fields)
    account.hold(TEXT_BYTES * len(body) + VALUE_BYTES * counts.values)
    return body


class Counts:
    """Counts the values and fields of JSON that is not parsed yet, and that may come in parts."""

    def __init__(self) -> None:
        self.values = self.fields = 0
        self._within = 0  # whether the next part begins within a string
        self._begun = b""  # an escape that the last part began

    def add(self, text: Json) -> None:
        """Counts those of the next part, unless there are too many values already."""
        for start in range(0, len(text), PART_BYTES):
            if self.values <= MAX_VALUES:
                outside = self._outside_strings(self._begun + text[start : start + PART_BYTES])
                fields = outside.count(b":")
                self.fields += fields
                self.values += fields + outside.count(b",")
                self.values += LIST_VALUES * (outside.count(b"[") + outside.count(b"{"))

    def check(self, max_fields: float = math.inf) -> None:
        """Raises InvalidInput for too many values or fields."""
        if self.values > MAX_VALUES:
            raise InvalidInput(
                f"the body has too many JSON values (limit {MAX_VALUES}); send fewer candidates per request"
            )
        if self.fields > max_fields:
            raise InvalidInput(f"the body has too many fields (limit {max_fields}); send fewer of each candidate's")

    def _outside_strings(self, part: bytes) -> bytes:
        """What of a part is not within strings; at least its commas, colons and opening brackets."""
        backslashes = len(part) - len(part.rstrip(b"\\"))
        self._begun = part[len(part) - backslashes % 2 :]
        if rb"\"" in part:
            part = part.replace(rb"\\", b"").replace(rb"\"", b"")  # the other quotes are at the ends of strings
        quotes, within = part.count(b'"'), self._within
        self._within ^= quotes & 1
        if quotes < MANY_QUOTES:
            return b"".join(part.split(b'"')[within::2])
        characters = np.frombuffer(part.translate(None, NO_STRUCTURE), np.uint8)  # faster where there are many strings
        inside = np.bitwise_xor.accumulate((characters == QUOTE).view(np.uint8)) ^ within
        outside: bytes = characters[inside == 0].tobytes()
        return outside


def num_values(body: Json, max_fields: float = math.inf) -> int:
    """The number of values in JSON that is not parsed yet. Raises InvalidInput for too many values or fields."""
    counts = Counts()
    counts.add(body)
    counts.check(max_fields)
    return counts.values


def load(body: Json) -> object:
    """Parses JSON into Python's own types. Raises InvalidInput.

    It may begin with the byte order mark that Windows puts into UTF-8 files, which curl and others send along.
    """
    if body.startswith(BOM_UTF8):  # noqa: FURB188 - removeprefix would copy every bytearray
        body = body[len(BOM_UTF8) :]
    try:
        return from_json(body, cache_strings="keys")  # looking each text up as well would take twice as long
    except ValueError as error:
        raise InvalidInput(f"Invalid JSON: {error}{_cause(body, str(error))}") from None


def _cause(body: Json, fault: str) -> str:
    """The likely cause of a fault in JSON that looks right to its sender; empty if the fault says it all."""
    if "surrogate" in fault or "hex escape" in fault:
        return "; half of a surrogate pair cannot be read, such as a text has that was cut within an emoji"
    if "trailing characters" in fault and " line 1 " not in fault:
        return f"; one value is expected. PUT /candidates also takes lines, as {NDJSON[0]}"
    if body.startswith(GZIP):
        return "; it is compressed: send it uncompressed"
    try:
        body.decode()
    except UnicodeDecodeError:
        return "; the body is not in UTF-8"
    return ""


def validated(kind: type[Kind], data: object) -> Kind:
    """The validated request. Raises InvalidInput, whose message lists the first three faults."""
    reader: TypeAdapter[Kind] = READERS.get(kind) or READERS.setdefault(kind, TypeAdapter(kind))
    try:
        return reader.validate_python(data)
    except ValidationError as error:
        raise InvalidInput(in_words(error, data)) from None
