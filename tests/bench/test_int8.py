"""The page on int8: what it says of rankings in float32 and in int8."""

import numpy as np
import pytest

from bandrank_bench.int8_report import report
from bandrank_training.candidates import ranked
from bandrank_training.quantising import Row


def test_what_int8_changed_is_measured_by_query() -> None:
    words = [f"w{number:02}" for number in range(12)]
    qrels = {"q": {**dict.fromkeys(words, 0), "w01": 1}, "r": {"w00": 1, "w01": 0}}
    before = {"q": -np.arange(12.0), "r": np.array([2.0, 0])}
    after = {"q": before["q"].copy(), "r": before["r"] + 0.5}
    after["q"][:2] = -1, 0  # the relevant one comes first
    after["q"][10] += 1.5  # into the ten best
    exact, near = (
        {name: ranked(words[: len(each)], each) for name, each in scores.items()} for scores in (before, after)
    )

    row = Row.of("words test", exact, near, qrels)

    assert row.exacts == pytest.approx([1 / np.log2(3), 1])
    assert row.nears == pytest.approx([1, 1])
    assert row.overlap == pytest.approx((0.9 + 1) / 2)
    assert row.tau == pytest.approx((1 - 2 * 2 / 66 + 1) / 2)  # 2 of 66 pairs change places
    assert row.largest == pytest.approx(1.5)
    assert row.typical == pytest.approx(np.sqrt((1 + 1 + 1.5**2 + 2 * 0.5**2) / 14))
    assert row.spread == pytest.approx((before["q"].std() + 1) / 2)
    assert "## ours\n\n| | queries | float32 | int8 |" in (page := report({"ours": [row]}, 30))
    assert "| words test | 2 | 0.8155 | 1.0000 | +0.1845 | 0.500 |" in page
