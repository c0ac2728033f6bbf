"""Widens the windows of Elasticsearch's retrievers that join others. Such a retriever returns no more hits than its
window has ranks, ten by default, and a search for more is refused.
"""

import re
from functools import partial

from bandrank.proxy.raw_json import Edit, find, read_elements, read_members

JOINING = frozenset({"linear", "rrf"})
WINDOW = "rank_window_size"


def widened(text: str, at: int, depth: int) -> list[Edit]:
    """The edits that give the retriever at `at`, and those inside it, windows of at least `depth`; none for anything
    else.
    """
    try:
        return _retriever(text, at, depth)[0]
    except (ValueError, RecursionError):
        return []


def _retriever(text: str, at: int, depth: int) -> tuple[list[Edit], int]:
    """The edits of a retriever, or of an object with one and its weight, and where it ends. Raises ValueError."""
    readers = dict.fromkeys(JOINING, partial(_joining, depth=depth)) | {"retriever": partial(_retriever, depth=depth)}
    members, end = read_members(text, at, readers)
    return [edit for part in members if part.key in readers for edit in part.value], end


def _joining(text: str, at: int, depth: int) -> tuple[list[Edit], int]:
    inner = partial(read_elements, read=partial(_retriever, depth=depth))
    members, end = read_members(text, at, {"retrievers": inner})
    joined = find(members, "retrievers")
    edits = [edit for each in joined.value for edit in each.value] if joined is not None else []
    window = find(members, WINDOW)
    if window is None:
        edits.append(Edit(at + 1, at + 1, f'"{WINDOW}": {depth}' + (", " if members else "")))
    elif re.fullmatch(r"[0-9]{1,9}", str(window.value)) and int(window.value) < depth:
        edits.append(Edit(window.value_start, window.end, str(depth)))
    return edits, end
