"""Which headers an intermediary hands on (RFC 9110, 7.6.1), and which it adds."""

from collections.abc import Iterable

from bandrank.errors import InvalidInput

Headers = list[tuple[bytes, bytes]]

# Headers that concern one connection alone. Our own HTTP server answers Expect.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
NEVER_NAMED = frozenset({b"content-length", b"host"})  # a Connection header cannot take these away
VIA = b"1.1 bandrank"
# Control characters, which a value may not have, as blanks (RFC 9110, 5.5); our own HTTP server sends none.
BLANKED = bytes.maketrans(bytes([*range(9), *range(10, 32), 127]), b" " * 32)
NO_CONTENT, NOT_MODIFIED = 204, 304


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers without those of one connection: the known ones and those that `Connection` names."""
    headers = list(headers)
    connection = b",".join(value for name, value in headers if name.lower() == b"connection")
    named = {option.strip().lower() for option in connection.split(b",")}
    dropped = HOP_BY_HOP | (named - NEVER_NAMED)
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def to_upstream(headers: Iterable[tuple[bytes, bytes]], *, host: bytes, client: str) -> Headers:
    """The headers of a client's request, as sent upstream. host: the upstream's.  client: the client's address, or
    what a trusted peer gave for it, which may be any text.

    Raises InvalidInput for a body in a transfer coding that is not decoded here and would be lost.
    """
    headers = list(headers)
    coding = b",".join(value for name, value in headers if name == b"transfer-encoding").strip().lower()
    if coding not in {b"", b"chunked"}:
        raise InvalidInput("send the body with a Content-Length or in chunks, and in no other transfer coding")
    dropped = {b"host", b"x-forwarded-for"} | ({b"content-length"} if coding else set())
    hops = [value for name, value in headers if name == b"x-forwarded-for"]
    hops += [client.encode("latin-1", "replace")] if client else []
    sent = [(b"host", host), *((name, value) for name, value in end_to_end(headers) if name not in dropped)]
    if coding:
        sent.append((b"transfer-encoding", b"chunked"))
    return [*sent, (b"via", VIA), *([(b"x-forwarded-for", b", ".join(hops))] if hops else [])]


def to_client(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of the upstream's answer, as sent to the client: without a length if its status rules out a body, and
    with blanks in place of control characters.

    A 304 may say how long the body would be (RFC 9110, 8.6), but the server here counts what it sends.
    """
    handed_on = [(name, value.translate(BLANKED)) for name, value in end_to_end(headers)]
    return replaced(handed_on, content_length=None) if status in {NO_CONTENT, NOT_MODIFIED} else handed_on


def first(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    """The first value of a header, named in lower case; empty without one."""
    return next((value for name, value in headers if name.lower() == wanted), b"")


def replaced(headers: Iterable[tuple[bytes, bytes]], **values: bytes | None) -> Headers:
    """The headers with some set, or left out for None; an underscore in a keyword is a hyphen in the name."""
    new = {name.replace("_", "-").encode("ascii"): value for name, value in values.items()}
    kept = [(name, value) for name, value in headers if name.lower() not in new]
    return kept + [(name, value) for name, value in new.items() if value is not None]
