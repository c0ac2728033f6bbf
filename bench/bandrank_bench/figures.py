"""Saves figures that are committed with a page."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as SVG with text kept as text, which halves the size or better."""
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)
