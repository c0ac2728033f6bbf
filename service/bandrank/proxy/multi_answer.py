"""Reads the answer to each of several searches, and writes the whole with some of them replaced."""

from collections.abc import Mapping
from functools import partial

from bandrank.proxy.fetching import OK
from bandrank.proxy.raw_json import Part, find, read_document, read_elements, read_members, read_roughly


class MultiAnswer:
    """An answer of the engine that contains an answer to each search."""

    def __init__(self, body: bytearray, num_searches: int) -> None:
        """Raises ValueError for any other body, and RecursionError for one that is nested too deeply."""
        # A character for each byte, as in `SearchAnswer`, so that places in the text are places in the body.
        text = body.decode("latin-1")
        read_answers = partial(read_elements, read=_read_status, max_elements=num_searches)
        found = find(read_document(text, partial(read_members, readers={"responses": read_answers})), "responses")
        if found is None or len(found.value) != num_searches:
            raise ValueError(f"expected {num_searches} answers")
        self._body = body
        self._parts: list[Part] = found.value

    def status(self, index: int) -> float:
        """The HTTP status that one of the searches would have got had it come alone."""
        status: float = self._parts[index].value
        return status

    def body(self, index: int) -> bytes:
        """The answer to one of the searches."""
        part = self._parts[index]
        return bytes(self._body[part.start : part.end])

    def write(self, others: Mapping[int, bytes]) -> bytes:
        """The answer with the searches of some indices answered by `others`, and everything else unchanged."""
        pieces: list[bytes | bytearray] = []
        at = 0
        for index, other in sorted(others.items()):
            part = self._parts[index]
            pieces += [self._body[at : part.start], other]
            at = part.end
        return b"".join([*pieces, self._body[at:]])


def _read_status(text: str, at: int) -> tuple[float, int]:
    """The status of the answer at `at`, of which nothing else is kept, and where it ends."""
    value, end = read_roughly(text, at)
    status = value.get("status") if isinstance(value, dict) else None
    return status if isinstance(status, float) else OK, end
