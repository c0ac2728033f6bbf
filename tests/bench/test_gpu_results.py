"""The results of the check for GPUs: its arithmetic, the model of time, and the page."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bandrank_bench.gpu import goals, predictions, report
from bandrank_bench.gpu.shape import Shape, floor_us
from bandrank_bench.gpu.stages import Journal, Record
from bandrank_bench.gpu.whole_model import LENGTHS, SIZE

RESULTS = Path(__file__).resolve().parents[2] / "kernels" / "results"


@pytest.mark.parametrize(
    ("tokens", "head_dim", "megabytes", "fused_us", "separate_us"),
    [
        (164, 32, 51.0, 15.2, (44.5, 101)),
        (4086, 32, 1256, 375, (1101, 2506)),
        (54, 64, 34.5, 10.3, (26.2, 45.1)),
        (164, 64, 102, 30.5, (78.5, 135)),
    ],
)
def test_floors_worked_out_by_hand(
    tokens: int, head_dim: int, megabytes: float, fused_us: float, separate_us: tuple[float, float]
) -> None:
    """By hand: (100 (n + 2) + 11) rows of 4 * heads * dims numbers of 2 bytes at 3.35 TB/s; for separate kernels 9
    rows of heads * dims, 4 of the band and the 12 globals, and 4 numbers of [CLS] a head, for each candidate row.
    """
    narrow = Shape(tokens, 4, head_dim)

    assert narrow.fused_bytes / 1e6 == pytest.approx(megabytes, rel=5e-3)
    assert floor_us(narrow.fused_bytes) == pytest.approx(fused_us, rel=5e-3)
    for window, expected in zip((4, 64), separate_us, strict=True):
        assert floor_us(replace(narrow, window=window).two_kernel_bytes) == pytest.approx(expected, rel=5e-3)


def test_goals_worked_out_by_hand() -> None:
    """An operation in 20 us on a card that copies 3 TB/s: 51.03 MB take 17.01 us, and 148.9 MB 49.6 us."""
    at = {"tokens": 164, "window": 4, "head_dim": 32}
    times = {"ours": 20.0, "full flash": 50.0, "full cudnn": 46.0, "flex": 50.0}
    measured = goals.Measurements(
        [
            Record("machine", "copy", "ok", facts={"bytes_per_s": 3e12}),
            *(
                Record(stage, name, "ok", facts={"system": name, "cold_us": us, **at})
                for (name, us), stage in zip(times.items(), ("operation", *["baselines"] * 3), strict=True)
            ),
            Record("model", "ours", "ok", facts={"system": "ours sparse", "lengths": "164", "peak_bytes": 8e7}),
            Record("tests", "one", "ok"),
            Record("tests", "two", "failed"),
        ]
    )
    shape = Shape(164, 4, 32)

    assert measured.copy_share(shape) == pytest.approx(0.8505, abs=1e-4)
    assert measured.over_two_kernels(shape) == pytest.approx(2.482, abs=1e-3)
    assert measured.over_best_full(shape) == pytest.approx(2.3)
    assert measured.over("flex", shape) == pytest.approx(2.5)
    assert measured.over("varlen", shape) is None
    assert measured.megabytes("164") == pytest.approx(0.8)
    assert measured.exact() == 0


def test_realistic_lengths() -> None:
    """Passages and documents have the stated mean, and one of them the longest length."""
    passages, documents = LENGTHS["passages"], LENGTHS["documents"]

    assert (len(passages), max(passages)) == (100, 163)
    assert sum(passages) / 100 == pytest.approx(77, abs=1)
    assert sum(documents) / 100 == pytest.approx(1370, abs=10)


def test_the_page_is_of_the_newest_run(tmp_path: Path) -> None:
    for date, us in (("2026-01-02", 19.0), ("2026-01-01", 33.0)):
        facts = {"system": "ours", "tokens": 164, "window": 4, "head_dim": 32, "cold_us": us}
        run = Journal(tmp_path / f"{date}-card.jsonl")
        run.write(Record("run", "started", "ok", facts={"dry": False}))
        run.write(Record("operation", "ours", "ok", facts=facts))
        run.write(Record("service", "start", "ok", facts={"s until ready": 12.5, "log": {}}))
    newest = tmp_path / "2026-01-02-card.jsonl"
    newest.with_suffix(".jsonl.gz").write_bytes(gzip.compress(newest.read_bytes()))
    newest.unlink()
    page = report.page(tmp_path)

    assert "`2026-01-02-card.jsonl.gz`" in page
    assert "| start | 12.5 s until ready |" in page
    assert "| attention of a layer, n=164 w=4 12x32 | at most 21 us | 21.1 | 15.9 | 19 us | yes |" in page
    assert report.NOTHING not in page


def test_runs_on_one_kind_of_card_are_parts_of_one(tmp_path: Path) -> None:
    """The last run of each stage counts, but not one that was cut short; runs on another card do not."""
    facts = {"system": "ours", "tokens": 164, "window": 4, "head_dim": 32}
    for name, stage, status, us in (
        ("2026-01-01T2359-other", "model", "ok", 0.0),
        ("2026-01-02T1000-card", "launches", "ok", 0.0),
        ("2026-01-03T1000-card", "operation", "ok", 33.0),
        ("2026-01-04T1010-card", "operation", "ok", 19.0),
        ("2026-01-05T1020-card", "operation", "cut", 40.0),
        ("2026-01-05T1020-card", "sweep", "cut", 0.0),
    ):
        run = Journal(tmp_path / f"{name}.jsonl")
        if not run.path.exists():
            run.write(Record("run", "started", "ok", facts={"dry": False}))
        run.write(Record(stage, "ours", status, facts=facts | {"cold_us": us}))
    page = report.page(tmp_path)

    assert "newest is `2026-01-05T1020-card.jsonl`" in page
    assert "| launches | 2026-01-02 | 1 |" in page
    assert "| operation | 2026-01-04 | 1 |" in page
    assert "| sweep | 2026-01-05 | 0 | 0 | 0 | 1 |" in page
    assert "| model |  | 0 |" in page
    assert "| 19 us | yes |" in page


def test_the_page_is_up_to_date() -> None:
    """Run `python -m bandrank_bench.gpu.report kernels/results` if not."""
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == report.page(RESULTS)


def test_the_model_of_time_knows_every_goal_of_a_kernel() -> None:
    """The model covers both cards; more bandwidth makes nothing slower, and nothing beats a copy of its bytes."""
    slow, fast = (goals.Measurements(card.records()) for card in predictions.CARDS)
    unknown = {goal.text for goal in goals.GOALS if goal.value(slow) is None}

    assert all(re.search("memory|bits|host|back to back|end to end", text) for text in unknown)
    assert unknown == {goal.text for goal in goals.GOALS if goal.value(fast) is None}
    for goal in goals.GOALS:
        before, after = goal.value(slow), goal.value(fast)
        if before is None or after is None:
            continue
        assert after <= before or not goal.at_most, goal.text
        assert max(before, after) < 1 or "copy bandwidth" not in goal.text, goal.text


def test_the_model_of_time_counts_the_operations_of_a_request() -> None:
    """tests/models/test_few_launches.py counts the same operations in a graph."""
    layers = SIZE.num_layers - 1

    assert 1 + layers * predictions.LAYER_NODES + predictions.TAIL_NODES == 47


def test_a_pass_takes_the_time_of_its_bytes() -> None:
    """By hand, on an H100: GELU at 164 tokens, 102 MB, and the attention, 51 MB and a quarter of 6.3 us."""
    (card, _) = predictions.CARDS
    shape = Shape(164, 4, 32)

    assert card._moved(2 * 1536 * 16_611) == pytest.approx(34.0, abs=0.1)
    assert card.attention_us(16_611, shape) == pytest.approx(17.0 + 6.3 / 4 + 2.5, abs=0.1)
