"""Registers and encodes a whole corpus ahead of its queries."""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from bandrank.engine.registry import CandidateRegistry, titled
from bandrank.errors import InvalidInput

LINES_AT_ONCE = 256  # the part of a corpus that is in memory at a time


@dataclass
class Precomputed:
    """The number of registered candidates, and of representations that were computed now or already cached."""

    registered: int = 0
    encoded: int = 0
    cached: int = 0


async def precompute(path: Path, registry: CandidateRegistry) -> Precomputed:
    """Registers every candidate of a corpus by id and puts its representation into the cache.

    path: JSON lines with `id` (or `_id`), `text`, and optionally `title`, which goes before the text, with a space
    between them, unless it is empty or null; .gz is unpacked.
    Cached representations are not encoded again, so that an interrupted run can be repeated.
    Raises InvalidInput for a line that cannot be read, with its number, or a file that cannot be unpacked, once the
    lines before are stored, and what `CandidateRegistry.register` raises.
    """
    done = Precomputed()
    with path.open("rb") as raw, tqdm(total=os.fstat(raw.fileno()).st_size, unit="B", unit_scale=True) as progress:
        for texts in _chunks(raw, compressed=path.suffix == ".gz"):
            encoded = await registry.register(texts)
            await registry.stored()
            done.registered += len(texts)
            done.encoded += encoded
            done.cached += registry.num_precomputing * len(set(texts.values())) - encoded
            progress.update(raw.tell() - progress.n)
            progress.set_postfix(encoded=done.encoded, cached=done.cached)
    return done


def _chunks(raw: IO[bytes], *, compressed: bool) -> Iterator[dict[str, str]]:
    """Texts by id, LINES_AT_ONCE lines at a time. Raises InvalidInput for a bad line, after the texts before it."""
    texts: dict[str, str] = {}
    try:
        for number, line in enumerate(_unpacked(raw) if compressed else raw, start=1):
            if line.strip():
                name, text = _candidate(number, line)
                texts[name] = text
            if len(texts) == LINES_AT_ONCE:
                yield texts
                texts = {}
    except InvalidInput:
        if texts:
            yield texts
        raise
    if texts:
        yield texts


def _unpacked(raw: IO[bytes]) -> Iterator[bytes]:
    """The lines of a compressed file. Raises InvalidInput if it is damaged or truncated."""
    try:
        yield from gzip.GzipFile(fileobj=raw)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidInput(f"it cannot be unpacked to its end: {error}") from None


def _candidate(number: int, line: bytes) -> tuple[str, str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"line {number}: not JSON: {error}") from None
    fields = record if isinstance(record, dict) else {}
    name, text, title = fields.get("id", fields.get("_id")), fields.get("text"), fields.get("title")
    title = "" if title is None else title
    if not isinstance(name, str) or not name or not isinstance(text, str) or not isinstance(title, str):
        raise InvalidInput(f"line {number}: expected an object with strings id (or _id) and text, and perhaps title")
    try:
        f"{name}{title}{text}".encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"line {number}: expected valid Unicode, got half of a surrogate pair") from None
    return name, titled(title, text)
