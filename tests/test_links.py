"""Links in the documents: each leads to an existing file and heading."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^( *```).*?^\1", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """The Markdown files of the project."""
    folders = ("docs", "service", "kernels", "training", "deploy", "loadtests", "tests")
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))])


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that links can name in a page, made from its headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> Iterator[str]:
    """Yields the links of a page that lead nowhere."""
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if ":" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Only links within the repository are checked."""
    assert [*broken(page)] == []


def test_a_comment_in_code_is_no_heading(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](#a-heading), [b](#a-comment)\n```sh\n# a comment\n```\n", encoding="utf-8")

    assert [*broken(page)] == ["#a-comment"]
