"""When the processors of the workers stay awake between batches."""

import math
import os
from unittest.mock import Mock

import pytest
import torch
from support.torch_threads import torch_threads

from bandrank.models import awake
from bandrank.models.workers import Workers, workers

CPU = torch.device("cpu")


class Asked:
    """Counts how often processors were asked to stay awake."""

    def __init__(self, for_s: float = 0) -> None:
        self.for_s, self.processors = for_s, list[int]()

    def stay(self, processor: int) -> None:
        self.processors.append(processor)


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which processors can be kept awake."""
    monkeypatch.setattr(awake, "why_not_awake", lambda: None)
    monkeypatch.setattr(awake, "quota", lambda: math.inf)
    monkeypatch.setattr(awake, "Awake", Asked)


def fail(part: int) -> None:
    raise ValueError(part)


def test_workers_keep_awake_the_processors_that_they_computed_on() -> None:
    """After each part, those that failed and those that all workers share included, once they are asked to."""
    pool, asked = Workers(2), Asked()
    pool.begin(str, [1, 2])()
    pool.processors.awake = asked  # type: ignore[assignment]
    pool.begin(str, [1, 2])()
    pool.begin_together(str, 3)()
    with pytest.raises(ValueError, match="4"):
        pool.begin(fail, [4])()
    with pytest.raises(ValueError, match="5"):
        pool.begin_together(fail, 5)()
    assert len(asked.processors) == 5
    assert set(asked.processors) <= os.sched_getaffinity(0)


def test_a_quota_for_all_processors_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of this process have what was asked for, in seconds."""
    monkeypatch.setattr(awake, "quota", lambda: len(os.sched_getaffinity(0)))
    with torch_threads(3):
        assert awake.keep_awake(25, CPU) is None
        kept = workers(3).processors.awake
    assert isinstance(kept, Asked)
    assert kept.for_s == 0.025


@pytest.mark.parametrize(
    ("milliseconds", "device", "usable", "reason"),
    [
        (0, "cpu", math.inf, "awake_ms is 0"),
        (50, "cuda", math.inf, "a GPU computes"),
        (50, "cpu", 0.5, "it would count against the CPU quota of a control group"),
        (50, "cpu", math.inf, "the CPU kernels cannot run: why"),
    ],
)
def test_why_processors_may_sleep(
    monkeypatch: pytest.MonkeyPatch, milliseconds: float, device: str, usable: float, reason: str
) -> None:
    """The reason is told, and no worker is started for it: a GPU's host may need none."""
    monkeypatch.setattr(awake, "quota", lambda: usable)
    monkeypatch.setattr(awake, "why_not_awake", lambda: "the CPU kernels cannot run: why")
    monkeypatch.setattr(awake, "workers", Mock(side_effect=AssertionError))
    assert awake.keep_awake(milliseconds, torch.device(device)) == reason
