"""Reads and validates bodies; endpoints read them themselves, to bound their size."""

from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from bandrank.api.faults import in_words
from bandrank.api.pace import Pace
from bandrank.engine.clients import Client
from bandrank.engine.memory import Account
from bandrank.errors import InputTooLarge, InvalidInput, UnsupportedMedia

Kind = TypeVar("Kind")  # a model, or a dataclass
Json = bytes | bytearray

GZIP = b"\x1f\x8b"  # how compressed bodies begin
QUOTE, MANY_QUOTES = ord('"'), 1 << 16
NO_STRUCTURE = bytes(set(range(256)) - set(b'",:[{'))  # characters that no count needs
PART_BYTES = 1 << 20  # of a body, between two looks at whether it has too many values
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
# Field names take longest. The most in a request, save one that registers candidates: so many for each candidate that a
# ranking may have, which may be a document with fields, and so many in any case.
CANDIDATE_FIELDS, FEW_FIELDS = 64, 1 << 16
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
    request: Request, kind: type[Kind], max_bytes: int, account: Account, pace: Pace, *, any_fields: bool = False
) -> Kind:
    """The validated request in a body of JSON, which is not one for a ranking.

    any_fields: do not bound the number of fields. Raises what `read_body` raises, and InvalidInput.
    """
    body = await read_body(request, max_bytes, account, pace)
    if not any_fields:
        await check_fields(body, account.client, pace)
    content = await pace.run(account.client, load, body)
    return await pace.run(account.client, validated, kind, content)


async def read_body(request: Request, max_bytes: int, account: Account, pace: Pace) -> bytearray:
    """A whole body of JSON. The account holds it as it arrives, and then what parsing it will take.

    Raises InputTooLarge if it has more than `max_bytes`, and keeps none of it then; InvalidInput if it has too many
    values; and what `media_type` and `Account.hold` raise.
    """
    media_type(request)
    too_large = f"the body is larger than {max_bytes} bytes; send fewer or shorter candidates per request"
    waits = request.headers.get("expect", "").lower() == "100-continue"
    if waits and int(request.headers.get("content-length", 0)) > max_bytes:
        raise InputTooLarge(too_large)  # before the client is asked for the body
    body = bytearray()  # grows in place: joining the chunks at the end would hold the event loop, and twice the memory
    size = most_values = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= max_bytes:
            account.hold(len(chunk))
            body += chunk
            most_values += values_at_most(chunk)
        else:
            body.clear()
            if size > DRAIN_FACTOR * max_bytes:
                break
    if size > max_bytes:
        raise InputTooLarge(too_large)
    if most_values > MAX_VALUES:
        await pace.turn(account.client)
        counts = _counts_outside_strings(body, values_at_most, MAX_VALUES)
        most_values = _checked(sum(await pace.listed(account.client, counts, 1)))
    account.hold(TEXT_BYTES * len(body) + VALUE_BYTES * most_values)
    return body


def check_values(body: Json, most: int | None = None) -> int:
    """The number of values in JSON that is not parsed yet; up to the limit, it may be too high.

    most: the sum of `values_at_most` over its parts. Raises InvalidInput for too many values.
    """
    count = values_at_most(body) if most is None else most
    return count if count <= MAX_VALUES else _checked(sum(_counts_outside_strings(body, values_at_most, MAX_VALUES)))


def _checked(num_values: int) -> int:
    """Returns the number of values. Raises InvalidInput for too many."""
    if num_values > MAX_VALUES:
        raise InvalidInput(f"the body has too many JSON values (limit {MAX_VALUES}); send fewer candidates per request")
    return num_values


async def check_fields(body: Json, client: Client, pace: Pace, max_candidates: int = 1) -> None:
    """Raises InvalidInput for a request with more fields than `max_candidates` candidates may have."""
    limit = max(FEW_FIELDS, CANDIDATE_FIELDS * max_candidates)
    if fields_at_most(body) > limit:
        await pace.turn(client)
        if sum(await pace.listed(client, _counts_outside_strings(body, fields_at_most, limit), 1)) > limit:
            raise InvalidInput(f"the body has too many fields (limit {limit}); send fewer of each candidate's")


def has_many_fields(body: Json) -> bool:
    """Whether JSON has more than FEW_FIELDS fields."""
    most = FEW_FIELDS
    return fields_at_most(body) > most and sum(_counts_outside_strings(body, fields_at_most, most)) > most


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


def values_at_most(text: Json) -> int:
    """The number of values in JSON, or more: characters in strings count as well."""
    return text.count(b",") + text.count(b":") + LIST_VALUES * (text.count(b"[") + text.count(b"{"))


def fields_at_most(text: Json) -> int:
    """The number of fields in JSON, or more: colons in strings count as well."""
    return text.count(b":")


def _counts_outside_strings(body: Json, at_most: Callable[[Json], int], limit: int) -> Iterator[int]:
    """What `at_most` counts in JSON without the contents of its strings, part by part until the sum exceeds `limit`."""
    count = 0
    for part in _outside_strings(body):
        yield (more := at_most(part))
        if (count := count + more) > limit:
            break


def _outside_strings(body: Json) -> Iterator[bytes]:
    """The commas, colons and opening brackets of JSON that are not within its strings, in parts."""
    start = inside = 0  # inside: whether a part starts within a string
    while start < len(body):
        end = body.find(b",", start + PART_BYTES) + 1 or len(body)  # no escape in a string ends with a comma
        part = bytes(body[start:end])
        if b"\\" in part:
            part = part.replace(rb"\\", b"").replace(rb"\"", b"")  # the other quotes are at the ends of strings
        part = part.translate(None, NO_STRUCTURE)
        quotes = part.count(b'"')
        if quotes < MANY_QUOTES:
            yield b"".join(part.split(b'"')[inside::2])
        else:  # faster where there are many strings
            characters = np.frombuffer(part, np.uint8)
            within = np.bitwise_xor.accumulate((characters == QUOTE).view(np.uint8)) ^ inside
            yield characters[within == 0].tobytes()
        start, inside = end, inside ^ quotes & 1
