"""A search as a client sends it, and the deeper one that is sent in its place."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, unquote_plus

from bandrank.proxy.field_patterns import WILDCARD, not_asked_for
from bandrank.proxy.outcomes import Skipped, SkipReason
from bandrank.proxy.query_text import query_text
from bandrank.proxy.rank_windows import widened
from bandrank.proxy.raw_json import Edit, Number, Part, edited, encodable, find, read_document, read_members
from bandrank.proxy.rerank_options import RerankOptions

SEARCH, MULTI_SEARCH = (re.compile(rb"/(?:(?P<indices>[^/]+)/)?%s/?" % name) for name in (b"_search", b"_msearch"))
METHODS = frozenset({"GET", "POST"})
ALL = "_all"  # the one word for indices that begins with an underscore
DEFAULT_SIZE = 10
MAX_WIDE_BYTES = 4 << 20  # of a body beyond ASCII: in memory, one wide character makes all others take four bytes each
MAX_PARAMETERS = 1024  # of a query string
MAX_PATTERNS, MAX_PATTERN_CHARACTERS = 1024, 8 << 10  # of fields: each is compared with all fields that are ranked
BY_SCORE = ("_score", {"_score": "desc"}, {"_score": {"order": "desc"}})
SOURCE_FILTERS = frozenset({"_source", "_source_includes", "_source_excludes", "stored_fields"})
WITHOUT_SOURCE = frozenset({"script_fields", "stored_fields"})  # unless the body asks for `_source` as well
PAGING = frozenset({"search_after", "pit", "slice"})


@dataclass(frozen=True)
class SearchRequest:
    """A search that can be re-ranked.

    options: how.  start, size: the client's page of the hits.  query: what the user looks for.  added: names that the
    deeper search adds to the client's `fields`.  target_query, body: the deeper search's query string and body.
    """

    options: RerankOptions
    start: int
    size: int
    query: str
    added: frozenset[str]
    target_query: bytes
    body: bytes


def indices_of(method: str, raw_path: bytes, path: re.Pattern[bytes] = SEARCH) -> tuple[str, ...] | None:
    """The indices that a search names, none in `/_search`; None for a request that is not a search.

    No index begins with an underscore: POST /_scripts/_search stores a script of that name.
    path: the pattern of the paths of searches.
    """
    matched = path.fullmatch(raw_path) if method in METHODS else None
    if matched is None:
        return None
    names = named(unquote((matched["indices"] or b"").decode("latin-1")))
    return None if any(name.startswith("_") and name != ALL for name in names) else names


def named(names: str) -> tuple[str, ...]:
    """The indices in a comma-separated list, without exclusions such as `-old`."""
    return tuple(name for name in names.split(",") if name and not name.startswith("-"))


def read_search(
    options: RerankOptions, query_string: bytes, body: bytes, query: str | None, *, page_in_body: bool = False
) -> SearchRequest:
    """The search in a query string and a body of JSON. query: what the user looks for, if it is known already.

    page_in_body: whether the deeper search asks for its page in the body, because it has no query string of its own.
    Raises Skipped for a search whose hits cannot be put in another order without changing what they mean.
    """
    parameters = re.split(b"[&;]", query_string)  # as the engines do
    if len(parameters) > MAX_PARAMETERS:
        raise Skipped(SkipReason.LARGE_REQUEST)
    given = {_parameter_name(part): unquote_plus(part.partition(b"=")[2].decode("latin-1")) for part in parameters}
    text, members = _members(body)
    fields = {part.key: part.value for part in members}
    asking = _of_standard(fields.get("retriever")) | fields
    _check_order(given, asking)
    start, size = _number(given, fields, "from", 0), _number(given, fields, "size", DEFAULT_SIZE)
    if size == 0:
        raise Skipped(SkipReason.NO_HITS_WANTED)
    if start + size > options.depth:
        raise Skipped(SkipReason.BEYOND_DEPTH)
    if query is None:
        query = given["q"] if given.get("q", "").strip() else _query_text(fields)
    kept = [part for part in parameters if part and _parameter_name(part) not in {"from", "size"}]
    target_query = b"&".join([*kept, b"from=0", b"size=%d" % options.depth])
    added: list[str] = []
    filtered = given.keys() & SOURCE_FILTERS or fields.keys() & WITHOUT_SOURCE
    if filtered or fields.get("_source", True) is not True:
        added = not_asked_for(options.fields, _asked_for(given, asking))
    edits = [_more_fields(text, members, added)] if added else []
    if page_in_body:
        edits += _whole_page(text, members, options.depth)
    if (retriever := find(members, "retriever")) is not None:
        edits += widened(text, retriever.value_start, options.depth)
    new_body = edited(text, 0, len(text), edits).encode("utf-8") if edits else body
    return SearchRequest(options, start, size, encodable(query), frozenset(added), target_query, new_body)


def _members(body: bytes) -> tuple[str, list[Part]]:
    """The body as text, `{}` for an empty one, and its members. Raises Skipped."""
    if len(body) > MAX_WIDE_BYTES and not (body.isascii() and b"\\u" not in body):
        raise Skipped(SkipReason.LARGE_REQUEST)
    try:
        text = body.decode("utf-8")
        if not text.strip():
            text = "{}"
        return text, read_document(text, read_members)
    except (ValueError, RecursionError):
        raise Skipped(SkipReason.UNREADABLE_REQUEST) from None


def _check_order(given: dict[str, str], fields: dict[str, Any]) -> None:
    """Raises Skipped unless the answer will have hits in JSON, in the order of their scores."""
    if "scroll" in given or fields.keys() & PAGING:
        raise Skipped(SkipReason.PAGED)
    if given.get("explain", "false") != "false" or fields.get("explain", False) is not False:
        raise Skipped(SkipReason.EXPLAINED)
    sort = fields.get("sort")
    by_body = [] if sort is None else sort if isinstance(sort, list) else [sort]
    if given.get("sort", "_score") not in {"_score", "_score:desc"} or any(key not in BY_SCORE for key in by_body):
        raise Skipped(SkipReason.SORTED)
    if "filter_path" in given or given.get("format", "json") != "json":
        raise Skipped(SkipReason.PARTIAL_ANSWER)
    if "source" in given:
        raise Skipped(SkipReason.UNREADABLE_REQUEST)


def _of_standard(retriever: object) -> dict[str, Any]:
    """The members of Elasticsearch's standard retriever, which may sort hits, page through them and collapse them; none
    of others.
    """
    standard = retriever.get("standard") if isinstance(retriever, dict) else None
    return standard if isinstance(standard, dict) else {}


def _query_text(fields: dict[str, Any]) -> str:
    """The user's words in the body. Raises Skipped, also for a query that is nested too deeply to be looked through."""
    try:
        return query_text(fields)
    except RecursionError:
        raise Skipped(SkipReason.UNREADABLE_REQUEST) from None


def _number(given: dict[str, str], fields: dict[str, Any], name: str, default: int) -> int:
    """A whole number in the query string or, if it is not there, in the body. Raises Skipped for anything else."""
    value = given.get(name, fields.get(name, str(default)))
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,9}", value):
        raise Skipped(SkipReason.UNREADABLE_REQUEST)
    return int(value)


def _asked_for(given: dict[str, str], fields: dict[str, Any]) -> set[str]:
    """The names and patterns that the client asks for in the `fields` of hits, where the engines also put the value by
    which hits are collapsed. Raises Skipped.
    """
    names = {name for key in ("docvalue_fields", "stored_fields") for name in given.get(key, "").split(",")}
    scripts = fields.get("script_fields")
    names.update(scripts if isinstance(scripts, dict) else ())
    for key in ("fields", "docvalue_fields", "stored_fields", "collapse"):
        asked = fields.get(key) or []
        for each in asked if isinstance(asked, list) else [asked]:
            name = each.get("field") if isinstance(each, dict) else each
            if not isinstance(name, str) or isinstance(name, Number):
                raise Skipped(SkipReason.UNREADABLE_REQUEST)
            names.add(name)
    patterns = [name for name in names if WILDCARD in name]
    if len(patterns) > MAX_PATTERNS or sum(map(len, patterns)) > MAX_PATTERN_CHARACTERS:
        raise Skipped(SkipReason.LARGE_REQUEST)
    return names


def _more_fields(text: str, members: Sequence[Part], added: Sequence[str]) -> Edit:
    """The edit that makes the body ask for more `fields`. Raises Skipped."""
    names = ", ".join(json.dumps(name) for name in added)
    asked = find(members, "fields")
    if asked is None:
        return _with_member(text, members, f'"fields": [{names}]')
    if not isinstance(asked.value, list):
        raise Skipped(SkipReason.UNREADABLE_REQUEST)
    comma = ", " if asked.value else ""
    return Edit(asked.end - 1, asked.end - 1, comma + names)


def _whole_page(text: str, members: Sequence[Part], depth: int) -> list[Edit]:
    """The edits that make the body ask for all hits down to a depth."""
    page = {"from": 0, "size": depth}
    edits = [Edit(part.value_start, part.end, str(page[part.key])) for part in members if part.key in page]
    return edits if find(members, "size") is not None else [*edits, _with_member(text, members, f'"size": {depth}')]


def _with_member(text: str, members: Sequence[Part], member: str) -> Edit:
    """The edit that puts another member before those of the body."""
    at = text.index("{") + 1
    return Edit(at, at, member + (", " if members else ""))


def _parameter_name(part: bytes) -> str:
    return unquote_plus(part.partition(b"=")[0].decode("latin-1"))
