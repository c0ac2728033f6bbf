"""Saves figures that are committed with a page."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from matplotlib import rc_context
from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
UNREAD = re.compile(r"(?s)<metadata>.*?</metadata>|(?<=<g) id=\"[^\"]*\"| transform=\"rotate\(-0 [^\"]*\"")
DRAWN_ID = re.compile(r"\b[mp][0-9a-f]{10}\b")  # of a shape or a clip, another in each process
DECIMALS = re.compile(r"(\d+\.\d)\d+(?=[^<]*>)")  # of numbers inside tags, not of what a reader sees between them


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as a small SVG: its text is kept as text, its coordinates are in tenths of a point, and what no
    reader needs is left out.
    """
    picture = io.StringIO()
    with rc_context({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(picture, format="svg")
    path.write_text(shortened(picture.getvalue()), encoding="utf-8")


def shortened(picture: str) -> str:
    """The same picture in fewer bytes."""
    names: dict[str, str] = {}
    picture = DRAWN_ID.sub(lambda drawn: names.setdefault(drawn[0], f"s{len(names)}"), picture)
    root = ET.fromstring(DECIMALS.sub(r"\1", UNREAD.sub("", picture)))  # noqa: S314  # matplotlib's own output
    _open_groups(root)
    for shape in root.iterfind(f".//{{{SVG}}}path"):
        shape.set("d", " ".join(shape.attrib["d"].split()))
        _style_once(shape, root)
    _font_once(root)
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    return ET.tostring(root, encoding="unicode")


def _open_groups(parent: ET.Element) -> None:
    """Puts what is in a group that says nothing in the group's place."""
    children: list[ET.Element] = []
    for child in parent:
        _open_groups(child)
        child.tail = "\n"
        children += child if child.tag == f"{{{SVG}}}g" and not child.attrib else [child]
    parent[:] = children


def _style_once(shape: ET.Element, root: ET.Element) -> None:
    """Gives a shape the style of its uses, if they all have the same, which says all that the shape's own says."""
    uses = root.findall(f".//{{{SVG}}}use[@{{{XLINK}}}href='#{shape.get('id')}']")
    if len({use.get("style") for use in uses}) == 1:
        shape.set("style", uses[0].attrib["style"])
        for use in uses:
            del use.attrib["style"]


def _font_once(root: ET.Element) -> None:
    """Moves the style that all texts have to the picture, from which they inherit it. A formula's parts keep theirs."""
    styles = {text: text.attrib.pop("style").split("; ") for text in root.iterfind(f".//{{{SVG}}}text[@style]")}
    shared = [each for each in next(iter(styles.values()), []) if all(each in style for style in styles.values())]
    root.set("style", "; ".join(shared))
    for text, style in styles.items():
        if own := [each for each in style if each not in shared]:
            text.set("style", "; ".join(own))
