"""Tells how far a command has got: by a bar on a terminal, and in a log by a line now and then."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

EVERY_S = 60  # between two lines of a log

Item = TypeVar("Item")


def progress(items: Iterable[Item], what: str, total: int, *, unit: str, leave: bool = True) -> Iterator[Item]:
    """Yields the items. unit, leave: of the bar, as tqdm has them."""
    if sys.stderr.isatty():
        yield from tqdm(items, what, total, unit=unit, leave=leave)
        return
    said = time.monotonic()
    for number, item in enumerate(items, 1):
        yield item
        if time.monotonic() - said >= EVERY_S:
            said = time.monotonic()
            print(f"{what}: {number} of {total}", file=sys.stderr, flush=True)  # noqa: T201
