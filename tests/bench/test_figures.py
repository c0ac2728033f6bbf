"""Figures that are committed with a page are small."""

from pathlib import Path

from matplotlib.figure import Figure

from bandrank_bench.figures import save


def test_a_figure_says_a_style_once_and_keeps_its_points_and_text(tmp_path: Path) -> None:
    """The style of a line's markers stands at their shape, and that of all texts at the picture."""
    figure = Figure()
    figure.subplots().plot([0, 1, 2], [1, 3, 2], "o-", color="#123456", label="admitted")
    figure.legend()
    save(figure, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    marker = next(line for line in text.splitlines() if "path id" in line and "fill: #123456" in line).split('"')[1]

    assert text.count(f'<use xlink:href="#{marker}"') == 4  # three points, and the one of the legend
    assert text.count("fill: #123456") == 1
    assert ">admitted</text>" in text
    assert text.count("DejaVu Sans") == 1
    assert "<g>" not in text
