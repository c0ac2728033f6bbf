"""Threads of idle priority keep processors awake."""

import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.native import needs_native
from support.processes import state
from support.tasks import wait_until

from bandrank_kernels.native.awake import Awake, why_not_awake
from bandrank_kernels.native.library import native

pytestmark = needs_native
needs_idle_priority = pytest.mark.skipif(why_not_awake() is not None, reason="needs threads of idle priority")

HERE = min(os.sched_getaffinity(0))


def keepers(processor: int = HERE) -> set[int]:
    """The ids of the threads that keep a processor awake."""
    return {each.native_id or 0 for each in threading.enumerate() if each.name == f"awake {processor}"}


def blocked(thread: int) -> set[int]:
    """The signals that a thread does not handle."""
    lines = Path(f"/proc/self/task/{thread}/status").read_text(encoding="ascii").splitlines()
    mask = int(next(line.split()[1] for line in lines if line.startswith("SigBlk:")), 16)
    return {number + 1 for number in range(64) if mask >> number & 1}


@needs_idle_priority
def test_a_processor_stays_awake_until_its_time_is_over() -> None:
    """All other threads go before the one that keeps it awake, which then sleeps until it is asked again."""
    before = keepers()
    awake = Awake(600)
    awake.stay(HERE)
    (keeper,) = keepers() - before
    try:
        wait_until(lambda: os.sched_getscheduler(keeper) == os.SCHED_IDLE)
        assert os.sched_getaffinity(keeper) == {HERE}
        assert signal.SIGTERM in blocked(keeper)
        for for_s, expected in ((600, "R"), (0, "S"), (600, "R"), (0, "S")):
            awake._for_ns = for_s * 10**9
            awake.stay(HERE)
            wait_until(lambda expected=expected: state(keeper) == expected)
    finally:
        awake._for_ns = 0
        awake.stay(HERE)


@needs_idle_priority
def test_each_processor_has_one_thread() -> None:
    """However many threads ask at once for the first time."""
    awake, together, before = Awake(0), threading.Barrier(8, timeout=20), keepers()

    def ask(_: int) -> None:
        together.wait()
        awake.stay(HERE)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert len(keepers() - before) == 1


@needs_idle_priority
def test_a_processor_that_cannot_be_kept_awake_is_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have gone, or there may be no room for a thread."""
    caplog.set_level(logging.INFO)
    awake = Awake(600)
    awake.stay(1_000_000)
    wait_until(lambda: not keepers(1_000_000))
    assert "processor 1000000 may sleep, because no thread can be bound to it" in caplog.text

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    awake.stay(HERE)


def test_a_system_may_refuse_idle_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """At normal priority, such a thread would take time from others."""
    monkeypatch.setattr(native(), "has_idle_priority", lambda: 0)
    assert why_not_awake() == "the system refuses threads of idle priority"
    with pytest.raises(RuntimeError, match="kept awake: the system refuses threads of idle priority"):
        Awake(1)


def test_without_kernels_nothing_keeps_processors_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is that of the kernels."""
    monkeypatch.setattr("bandrank_kernels.native.awake.why_no_native", lambda: "there is no C++ compiler")
    assert why_not_awake() == "the CPU kernels cannot run: there is no C++ compiler"
