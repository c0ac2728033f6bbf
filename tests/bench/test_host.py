"""python -m bandrank_bench host: a page with the time of every stage of the host's part."""

from pathlib import Path

import pytest

from bandrank_bench import host


def test_the_page_has_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CALLS_S", 0.0)
    monkeypatch.setattr(host, "REPEATS", 1)
    monkeypatch.setattr(host, "SHAPES", {"W0": (1, 75), "W1": (3, 600), "short": (4, 9)})

    page = tmp_path / "new" / "page.md"
    assert host.main(["--out", str(page)]) == 0

    rows = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines()]
    table = {row[0].removeprefix("| "): row[1:] for row in rows if len(row) == 4}
    assert [*table] == ["stage, us", "---", *host.stages(1, 9), "together"]
