"""A service keeps the processors awake that it computed on, and `bandrank check` says whether it would."""

import math
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from support.models import save_cross_encoder
from support.server import RunningService, running_service

from bandrank.__main__ import main
from bandrank.models import awake


def idle_priorities(service: RunningService) -> list[int]:
    """The ids of its threads of idle priority."""
    threads = map(int, os.listdir(f"/proc/{service.process.pid}/task"))
    return [thread for thread in threads if os.sched_getscheduler(thread) == os.SCHED_IDLE]


@pytest.mark.parametrize("milliseconds", ["50", "0"])
def test_a_service_keeps_processors_awake_if_it_may(tmp_path: Path, milliseconds: str) -> None:
    """The test of itself, before it is ready, is its first batch. A service that lets processors sleep says why."""
    reason = awake.keep_awake(float(milliseconds), torch.device("cpu"))
    model = str(save_cross_encoder(tmp_path))
    with running_service(
        tmp_path, arguments=["--model", model, "--device", "cpu", "--awake-ms", milliseconds]
    ) as service:
        assert bool(idle_priorities(service)) == (reason is None)
        log = service.log.read_text(encoding="utf-8")
    assert (f"processors may sleep between batches: {reason}" in log) == (reason is not None)


def test_check_says_whether_processors_stay_awake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which depends on the machine as well as on the setting."""
    monkeypatch.setattr(awake, "why_not_awake", lambda: None)
    monkeypatch.setattr(awake, "Awake", Mock())
    command = ["check", "--model", str(save_cross_encoder(tmp_path)), "--device", "cpu", "--awake-ms"]
    for milliseconds, quota, told in (
        ("2.5", math.inf, "awake for 2.5 ms"),
        ("0", math.inf, "processors may sleep: awake_ms is 0"),
        ("2.5", 0.1, "processors may sleep: it would count against the CPU quota of a control group"),
    ):
        monkeypatch.setattr(awake, "quota", lambda quota=quota: quota)
        assert main([*command, milliseconds]) == 0
        assert f"between batches      {told}\n" in capsys.readouterr().out
