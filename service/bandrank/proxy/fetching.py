"""Reads a client's request, and the engine's answer to the one sent in its place, whole and within bounds."""

import re
import zlib
from dataclasses import dataclass

from bandrank.api.parsing import FEW_FIELDS, TEXT_BYTES, num_values
from bandrank.engine.memory import Account
from bandrank.errors import BadGateway, BandrankError, GatewayTimeout, InvalidInput, Unreachable
from bandrank.proxy.downstream import Downstream
from bandrank.proxy.headers import Headers, first, replaced, to_upstream
from bandrank.proxy.large_json import LargeJson
from bandrank.proxy.outcomes import FailReason, Skipped, SkipReason, Unusable
from bandrank.proxy.upstream import Upstream, UpstreamAnswer
from bandrank.settings import Settings

OK, TOO_MANY_REQUESTS, SERVER_ERROR = 200, 429, 500
HANDED_ON = frozenset({401, 403, 404})  # the client's own search would get the same
# The part of the engine's timeout that a deeper search gets. A client that waits little longer than the whole timeout
# can then still get the answer to its own search, which has all of it.
DEEPER_SHARE = 0.5
VALUE_BYTES = 128  # of memory for each value of a search or an answer: a Python object and its position
JSON_TYPE = re.compile(r"application/(json|vnd\.(elastic|open)search\+json)\s*(;.*)?", re.IGNORECASE)
# The engines' other formats, which only a client that asks for them gets.
OTHER_TYPE = re.compile(r"application/(vnd\.(elastic|open)search\+)?(yaml|cbor|smile)\s*(;.*)?", re.IGNORECASE)
UNREADABLE = (InvalidInput, ValueError, RecursionError)  # what reading an answer of the engine raises


@dataclass(frozen=True)
class Fetched:
    """An answer of the engine."""

    status: int
    headers: Headers
    body: bytearray


class Fetching:
    """Reads clients' requests, and the engine's answers to what is sent in their place."""

    def __init__(self, upstream: Upstream, large_json: LargeJson, settings: Settings) -> None:
        self._upstream, self._json = upstream, large_json
        self._max_request_bytes = settings.max_body_bytes
        self._max_response_bytes = settings.proxy_max_response_bytes
        self._deeper_s = DEEPER_SHARE * settings.proxy_timeout_s

    async def content(self, client: Downstream, account: Account, kinds: re.Pattern[str] = JSON_TYPE) -> bytes:
        """The decompressed body of a client's request; the account holds the memory that reading it takes.

        kinds: the media types that it may have. Raises Skipped, also if the client wants another format than JSON,
        Unusable and ClientDisconnect.
        """
        if OTHER_TYPE.fullmatch(first(client.headers, b"accept").decode("latin-1").strip()):
            raise Skipped(SkipReason.PARTIAL_ANSWER)
        try:
            body = await client.read(self._max_request_bytes, account)
            if body is None:
                raise Skipped(SkipReason.LARGE_REQUEST)
            packed = bool(first(client.headers, b"content-encoding"))
            content, values = await self._json.run(
                account.client,
                self._max_request_bytes if packed else len(body),
                unpacked,
                body,
                client.headers,
                self._max_request_bytes,
                kinds,
            )
            account.hold(TEXT_BYTES * len(content) + VALUE_BYTES * values)
        except InvalidInput:
            raise Skipped(SkipReason.LARGE_REQUEST) from None  # too many values or fields
        except BandrankError as error:
            raise Unusable(error.error_type) from error
        return content

    async def fetch(self, client: Downstream, target: bytes, body: bytes, account: Account) -> Fetched:
        """The engine's JSON answer to a client's request with this target and body. Its status is 200, or one that the
        client's own request would get, too.

        Raises Unusable if the client's own request may still succeed, and Unreachable, Overloaded and InvalidInput if
        it would fail as well.
        """
        headers = replaced(
            to_upstream(client.headers, host=self._upstream.host, client=client.address),
            accept_encoding=b"identity",
            content_encoding=None,
            transfer_encoding=None,
            content_length=b"%d" % len(body) if body else None,
            content_type=(first(client.headers, b"content-type") or b"application/json") if body else None,
        )
        exchange = self._upstream.exchange(
            client.method, target, headers, body, client=client.sender, timeout_s=self._deeper_s
        )
        try:
            async with exchange as answer:
                check_status(answer.status)
                collected = await self._collect(answer, account)
        except Unreachable:
            raise
        except GatewayTimeout as error:
            raise Unusable(FailReason.ENGINE_TIMEOUT) from error
        except BadGateway as error:
            raise Unusable(FailReason.ENGINE_FAILED) from error
        kind, encoding = (first(answer.headers, name) for name in (b"content-type", b"content-encoding"))
        readable = JSON_TYPE.fullmatch(kind.decode("latin-1")) and encoding in {b"", b"identity"}
        if answer.status == OK and not readable:
            raise Unusable(FailReason.UNREADABLE_ANSWER)
        return Fetched(answer.status, answer.headers, collected)

    async def _collect(self, answer: UpstreamAnswer, account: Account) -> bytearray:
        """The body of an answer. Raises Unusable if it is too large."""
        body = bytearray()  # grows in place: joining parts would block the event loop and take twice the memory
        async for part in answer.parts:
            if len(body) + len(part) > self._max_response_bytes:
                raise Unusable(FailReason.LARGE_ANSWER)
            hold(account, len(part))
            body += part
        return body


def check_status(status: float) -> None:
    """Raises Unusable unless the answer has hits, or is what the client's own search would get, too."""
    if status == TOO_MANY_REQUESTS or status >= SERVER_ERROR:
        raise Unusable(FailReason.ENGINE_FAILED)
    if status != OK and status not in HANDED_ON:
        raise Unusable(FailReason.ENGINE_REFUSED)


def hold(account: Account, num_bytes: int) -> None:
    """Reserves `num_bytes` more. Raises Unusable if the account may not hold them."""
    try:
        account.hold(num_bytes)
    except BandrankError as error:
        raise Unusable(error.error_type) from error


def unreadable(error: Exception) -> Unusable:
    """Why re-ranking fails if reading an answer of the engine raises one of `UNREADABLE`."""
    return Unusable(FailReason.LARGE_ANSWER if isinstance(error, InvalidInput) else FailReason.UNREADABLE_ANSWER)


def unpacked(body: bytes, headers: Headers, max_bytes: int, kinds: re.Pattern[str] = JSON_TYPE) -> tuple[bytes, int]:
    """The decompressed body of a search, and how many values it has. kinds: the media types that it may have, if any.
    Raises Skipped, and InvalidInput for too many values or fields.
    """
    kind = first(headers, b"content-type").decode("latin-1").strip()
    encoding = first(headers, b"content-encoding").strip().lower()
    if (kind and not kinds.fullmatch(kind)) or encoding not in {b"", b"identity", b"gzip"}:
        raise Skipped(SkipReason.UNREADABLE_REQUEST)
    content = _gunzipped(body, max_bytes) if encoding == b"gzip" else body
    return content, num_values(content, FEW_FIELDS)  # which are read without a pause if their values are texts


def _gunzipped(body: bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(body, max_bytes)
    except zlib.error:
        raise Skipped(SkipReason.UNREADABLE_REQUEST) from None
    if stream.unconsumed_tail:
        raise Skipped(SkipReason.LARGE_REQUEST)
    if not stream.eof or stream.unused_data:
        raise Skipped(SkipReason.UNREADABLE_REQUEST)
    return content
