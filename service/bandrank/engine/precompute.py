"""Registering and encoding a whole corpus ahead of its queries."""

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from bandrank.engine.registry import CandidateRegistry
from bandrank.errors import InvalidInput

LINES_AT_ONCE = 256  # the only part of a corpus that is in memory


@dataclass
class Precomputed:
    """Candidates registered; representations of their texts that were computed now, and those that were cached."""

    registered: int = 0
    encoded: int = 0
    cached: int = 0


async def precompute(path: Path, registry: CandidateRegistry) -> Precomputed:
    """Registers every candidate of a corpus by id and puts its representation into the cache.

    path: JSON lines with `id` (or `_id`), `text`, and perhaps `title`, which goes before the text; .gz is unpacked.
    Run again after an interruption it goes on where it stopped: what is cached is not encoded again.
    Raises InvalidInput for a line that cannot be read, with its number, and what `CandidateRegistry.register` raises.
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
    """Texts by id, LINES_AT_ONCE lines at a time."""
    texts: dict[str, str] = {}
    lines = gzip.GzipFile(fileobj=raw) if compressed else raw
    for number, line in enumerate(lines, start=1):
        if line.strip():
            name, text = _candidate(number, line)
            texts[name] = text
        if len(texts) == LINES_AT_ONCE:
            yield texts
            texts = {}
    if texts:
        yield texts


def _candidate(number: int, line: bytes) -> tuple[str, str]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InvalidInput(f"line {number}: not JSON: {error}") from None
    fields = record if isinstance(record, dict) else {}
    name, text, title = fields.get("id", fields.get("_id")), fields.get("text"), fields.get("title", "")
    if not isinstance(name, str) or not name or not isinstance(text, str) or not isinstance(title, str):
        raise InvalidInput(f"line {number}: expected an object with strings id (or _id) and text, and perhaps title")
    return name, f"{title} {text}".strip() if title else text
