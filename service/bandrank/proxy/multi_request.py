"""The searches of an `_msearch`, two lines each: the first says where to look, the second for what."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bandrank.proxy.outcomes import PASSED, Mark, Skipped, SkipReason
from bandrank.proxy.raw_json import Number, read_document, read_value
from bandrank.proxy.search_request import SearchRequest, named

LINES_TYPE = re.compile(r"application/(x-ndjson|json|vnd\.(elastic|open)search\+(x-nd)?json)\s*(;.*)?", re.IGNORECASE)
MAX_SEARCHES = 64  # the outcomes have to fit into a header, and many servers allow 4 KiB for all headers


@dataclass(frozen=True)
class Entry:
    """One of the searches. head, body: its lines.  asked: how it is re-ranked.  mark: what becomes of it otherwise."""

    head: bytes
    body: bytes
    asked: SearchRequest | None = None
    mark: Mark = PASSED

    @property
    def own(self) -> bytes:
        """Its lines as the client sent them."""
        return b"%b\n%b\n" % (self.head, self.body)

    @property
    def deeper(self) -> bytes:
        """The lines that are sent in their place."""
        return self.own if self.asked is None else b"%b\n%b\n" % (self.head, self.asked.body)


def read_lines(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The two lines of each search. Raises Skipped for a body of anything else, or of too many searches."""
    if content.count(b"\n") > 2 * MAX_SEARCHES + 1:
        raise Skipped(SkipReason.LARGE_REQUEST)
    *lines, rest = content.split(b"\n")
    # The engines ignore a first line without a second. OpenSearch skips an empty line at the very beginning;
    # Elasticsearch takes it for the first of two.
    alone = lines.pop() if len(lines) % 2 else b""
    if rest or alone.strip() or not lines or not lines[0]:
        raise Skipped(SkipReason.UNREADABLE_REQUEST)
    return zip(lines[::2], lines[1::2], strict=True)


def indices_in(head: bytes, of_path: Sequence[str]) -> Sequence[str]:
    """The indices that the first line of a search names, or else those of the path. Raises Skipped."""
    try:
        found = read_document(head.decode("utf-8"), read_value) if head.strip() else {}
    except (ValueError, RecursionError):
        raise Skipped(SkipReason.UNREADABLE_REQUEST) from None
    if not isinstance(found, dict):
        raise Skipped(SkipReason.UNREADABLE_REQUEST)
    names = found.get("index", found.get("indices"))
    if names is None:
        return of_path
    names = names if isinstance(names, list) else [names]
    if not all(isinstance(name, str) and not isinstance(name, Number) for name in names):
        raise Skipped(SkipReason.UNREADABLE_REQUEST)
    return [name for each in names for name in named(each)]
