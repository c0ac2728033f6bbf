"""Saves figures that are committed with a page."""

import io
import re
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

INDENT = re.compile(r"\n\s*")
DECIMALS = re.compile(r"(\d+\.\d)\d+(?=[^<]*>)")  # of numbers inside tags, not of what a reader sees between them


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as a small SVG: its text is kept as text, and its coordinates are in tenths of a point."""
    picture = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(picture, format="svg")
    path.write_text(INDENT.sub("\n", DECIMALS.sub(r"\1", picture.getvalue())), encoding="utf-8")
