"""The table of dialects."""

from bandrank.api.dialects.dialect import Dialect
from bandrank.api.dialects.native import NATIVE

DIALECTS: tuple[Dialect, ...] = (NATIVE,)
PATHS = {path: dialect for dialect in DIALECTS for path in dialect.paths}


def dialect_at(path: str) -> Dialect:
    """The dialect that is spoken at a path; the native one where none is."""
    return PATHS.get(path, NATIVE)
