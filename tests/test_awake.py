"""A service keeps the processors awake that it computed on."""

import os
from pathlib import Path

import pytest
import torch
from support.models import save_cross_encoder
from support.server import RunningService, running_service

from bandrank.models.awake import keep_awake


def idle_priorities(service: RunningService) -> list[int]:
    """The ids of its threads of idle priority."""
    threads = map(int, os.listdir(f"/proc/{service.process.pid}/task"))
    return [thread for thread in threads if os.sched_getscheduler(thread) == os.SCHED_IDLE]


@pytest.mark.parametrize("milliseconds", ["50", "0"])
def test_a_service_keeps_processors_awake_if_it_may(tmp_path: Path, milliseconds: str) -> None:
    """The test of itself, before it is ready, is its first batch. A service that lets processors sleep says why."""
    reason = keep_awake(float(milliseconds), torch.device("cpu"))
    model = str(save_cross_encoder(tmp_path))
    with running_service(
        tmp_path, arguments=["--model", model, "--device", "cpu", "--awake-ms", milliseconds]
    ) as service:
        assert bool(idle_priorities(service)) == (reason is None)
        log = service.log.read_text(encoding="utf-8")
    assert (f"processors may sleep between batches: {reason}" in log) == (reason is not None)
