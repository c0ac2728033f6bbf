"""The table of dialects, by the paths of their endpoints."""

from bandrank.api.dialects.dialect import Dialect
from bandrank.api.dialects.native import NATIVE

DIALECTS: tuple[Dialect, ...] = (NATIVE,)
PATHS = {path: dialect for dialect in DIALECTS for path in dialect.paths}


def dialect_at(path: str) -> Dialect:
    """The dialect of a path; the native one for any other path."""
    return PATHS.get(path, NATIVE)
