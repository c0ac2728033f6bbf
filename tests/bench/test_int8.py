"""The page on int8: what it says of scores in float32 and in int8."""

import numpy as np
import pytest

from bandrank_bench.cascade import Asked
from bandrank_bench.int8_report import change, report


def test_what_int8_changed_is_measured_by_query() -> None:
    words = [f"w{number:02}" for number in range(12)]
    qrels = {"q": {**dict.fromkeys(words, 0), "w01": 1}, "r": {"w00": 1, "w01": 0}}
    asked = Asked("words test", qrels, {"q": words, "r": words[:2]}, {}, {})
    before = {"q": -np.arange(12, dtype=np.float32), "r": np.array([2, 0], np.float32)}
    after = {"q": before["q"].copy(), "r": before["r"] + np.float32(0.5)}
    after["q"][:2] = -1, 0  # the relevant one comes first
    after["q"][10] += 1.5  # into the ten best

    found = change(asked, before, after)

    assert found.before == pytest.approx([1 / np.log2(3), 1])
    assert found.after == pytest.approx([1, 1])
    assert found.overlap == pytest.approx((0.9 + 1) / 2)
    assert found.largest == pytest.approx(0.5)
    changes = np.array([1, 1, 1.5, *[0] * 9]) / before["q"].std()
    assert found.typical == pytest.approx(np.sqrt((np.sum(changes**2) + 2 * 0.5**2) / 14))
    assert "| ours | words test | 2 | 0.8155 | 1.0000 | +0.1845 |" in report([asked.name], {"ours": [found]}, 30)
