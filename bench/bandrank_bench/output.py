"""The progress that benchmarks print, and the parts shared by their pages."""

import bz2
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def say(text: str) -> None:
    """Prints progress with the time of day, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """A Markdown table. numbers: aligns all columns but the first to the right."""
    rule = "---:" if numbers else "---"
    lines = [head, ["---", *[rule] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bullets(facts: Mapping[str, str]) -> str:
    """A Markdown list of names and values."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def write_page(path: Path, page: str, samples: str | None = None) -> None:
    """Writes a page, and beside it any samples: lines of JSON, compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    if samples is not None:
        _samples_file(path).write_bytes(bz2.compress(samples.encode()))
    say(f"wrote {path}")


def read_samples(page: Path) -> list[str]:
    """The lines of the samples beside a page; none if there is no file."""
    file = _samples_file(page)
    return bz2.decompress(file.read_bytes()).decode().splitlines() if file.exists() else []


def json_line(value: Mapping[str, Any]) -> str:
    """A line of JSON with four digits per number: measurements have no more, and files of samples are large. Values of
    other types than JSON's are written as texts.
    """
    return json.dumps(_rounded(value), separators=(",", ":"), default=str) + "\n"


def _samples_file(page: Path) -> Path:
    """Where the samples of a page are."""
    return page.with_suffix(".jsonl.bz2")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value
