"""Pictures as they are committed beside a page."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Writes a picture as SVG, with letters as letters: half the size, or less."""
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)
