"""The benchmark of wire formats: its tiny scorer and its page."""

from pathlib import Path

from bandrank.models.loading import load_model
from bandrank_bench.dialects import FORMATS, NATIVE, WITH_TEXTS, page, write_tiny


def test_the_tiny_scorer_is_one_that_can_be_served(tmp_path: Path) -> None:
    """The tiny scorer precomputes, so that all of its candidates can be cached."""
    scorer = load_model(str(write_tiny(tmp_path / "tiny"))).scorer

    assert scorer.precomputes
    assert sum(each.numel() for each in scorer.encoder.layers.parameters()) < 10_000


def test_a_ratio_is_that_of_the_same_round() -> None:
    """A slow minute changes no ratio within a round; formats that return texts are compared with ours with texts."""
    seconds = {name: [2.0, 4.0, 60.0] for name in FORMATS} | {
        NATIVE: [1.0, 2.0, 60.0],
        WITH_TEXTS: [1.0, 1.0, 15.0],
    }
    rows = {line.split(" | ")[0]: line.split(" | ")[-1] for line in page({"100": seconds}).splitlines()}

    assert rows["| Voyage"] == "2.000 |"
    assert rows["| SGLang"] == "4.000 |"
