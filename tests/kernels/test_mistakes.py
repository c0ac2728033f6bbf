"""Markers of planted mistakes: what they replace in a line, that all are used, and that a wrong one is an error."""

import re
from pathlib import Path

import pytest
from emulation.mistakes import MARKER, Mistake, plant

from bandrank_kernels.launch import Kernel

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = [path for folder in ("kernels", "service") for path in sorted((ROOT / folder).rglob("*.*"))]
SOURCES = [path.read_text(encoding="utf-8") for path in SHIPPED if path.suffix in {".py", ".cu", ".cuh"}]
LISTS = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))]


def test_every_marker_is_used() -> None:
    marked = {name for source in SOURCES for name in MARKER.findall(source)}
    listed = {name for text in LISTS for name in re.findall(r"\bMistake\(\s*\"([a-z-]+)\"", text)}

    assert marked
    assert listed - {"here"} == marked


@pytest.mark.parametrize(
    ("line", "planted"),
    [
        ("if (a(b) < c) return 1;", "if (({} ? (x (a(b) < c)) : (a(b) < c))) return 1;"),
        ("for (int i = 0; i < n; i++) sum += f(i);", "for (int i = 0; ({} ? (x (i < n)) : (i < n)); i++) sum += f(i);"),
        (
            "auto f = [&](int i) { return i == n; };",
            "auto f = [&](int i) {{ return ({} ? (x (i == n)) : (i == n)); }};",
        ),
        ("known &= a <= b && c;", "known &= ({} ? (x (a <= b && c)) : (a <= b && c));"),
        ("__syncthreads();", "if ({}) {{ x (__syncthreads();) }} else {{ __syncthreads(); }}"),
    ],
)
def test_the_value_of_a_line_is_replaced(line: str, planted: str) -> None:
    """The value is the condition, the returned or the assigned expression, or a whole statement."""
    source = plant(Kernel(f"first;\n  {line}  // @here why\nlast;", "k"), [Mistake("here", "x $")]).source

    assert source.split("\n")[1:] == ["first;", f"  {planted.format('awake_mistake == 0')}  // @here why", "last;"]


def test_only_one_mistake_of_a_line_is_active() -> None:
    """Only one of them is awake at a time."""
    mistakes = [Mistake("here", "1"), Mistake("here", "2")]
    source = plant(Kernel("x\na = 0;  // @here", "k"), mistakes).source

    assert "a = (awake_mistake == 1 ? (2) : ((awake_mistake == 0 ? (1) : (0))));" in source


@pytest.mark.parametrize("source", ["x\na = 0;", "x\na = 0;  // @here\nb = 0;  // @here"])
def test_a_marker_is_there_once(source: str) -> None:
    with pytest.raises(LookupError, match="lines are marked @here"):
        plant(Kernel(source, "k"), [Mistake("here")])
