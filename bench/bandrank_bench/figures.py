"""Saves figures that are committed with a page."""

import io
import re
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

UNREAD = re.compile(r"(?s)<metadata>.*?</metadata>|(?<=<g) id=\"[^\"]*\"")
INDENT = re.compile(r"\n\s*")
DECIMALS = re.compile(r"(\d+\.\d)\d+(?=[^<]*>)")  # of numbers inside tags, not of what a reader sees between them


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as a small SVG: its text is kept as text, its coordinates are in tenths of a point, and what no
    reader needs is left out.
    """
    picture = io.StringIO()
    with rc_context({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(picture, format="svg")
    small = INDENT.sub("\n", UNREAD.sub("", DECIMALS.sub(r"\1", picture.getvalue())))
    path.write_text(small, encoding="utf-8")
