"""The progress that benchmarks print, and the parts that their pages share."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence


def say(text: str) -> None:
    """Prints progress with the time of day, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """A Markdown table. numbers: all columns but the first are aligned right."""
    rule = "---:" if numbers else "---"
    lines = [head, ["---", *[rule] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bullets(facts: Mapping[str, str]) -> str:
    """A Markdown list of names and values."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())
