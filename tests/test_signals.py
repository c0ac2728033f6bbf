"""Signals that arrive before the service has begun to serve."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.tasks import HANG_S, wait_until

from bandrank.stops import ended_by_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_models_load_ends_the_process(number: signal.Signals) -> None:
    """The exit code is that of a normal stop. A container's first process ignores signals without a handler."""
    loading, loads = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with ended_by_signals():
                os.write(loads, b".")
                time.sleep(HANG_S)
        finally:
            os._exit(9)
    os.read(loading, 1)
    os.kill(child, number)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    for end in (loading, loads):
        os.close(end)


def test_a_signal_while_torch_is_imported_ends_the_process() -> None:
    with subprocess.Popen([sys.executable, "-m", "bandrank", "serve"]) as service:
        maps = Path(f"/proc/{service.pid}/maps")
        wait_until(lambda: "libtorch" in maps.read_text(encoding="utf-8"))
        service.terminate()

        assert service.wait(HANG_S) == 0
