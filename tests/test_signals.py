"""Signals that arrive before the service has begun to serve."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from support.gates import gated_service
from support.tasks import HANG_S, wait_until

from bandrank.commands import serve
from bandrank.serving import LoadedScorers
from bandrank.settings import Settings
from bandrank.stops import ended_by_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_signal_while_models_load_ends_the_process(number: signal.Signals, loaded: bool) -> None:
    """The exit code is that of a normal stop. A container's first process ignores signals without a handler.

    loaded: whether the models are put together already.
    """
    loading, loads = os.pipe()
    child = os.fork()
    if child == 0:

        class Slow(list[LoadedScorers]):
            def __iter__(self) -> NoReturn:
                os.write(loads, b".")
                time.sleep(HANG_S)
                raise AssertionError

        try:
            with ended_by_signals():
                serve(Slow(), Settings(device="cpu")) if loaded else [*Slow()]
        finally:
            os._exit(9)
    os.read(loading, 1)
    os.kill(child, number)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    for end in (loading, loads):
        os.close(end)


def test_a_signal_while_models_are_tested_ends_the_process(tmp_path: Path) -> None:
    with gated_service(tmp_path, ready=False) as gated:
        gated.service.terminate()

        assert gated.service.exit_status(HANG_S) == 0


def test_a_signal_while_torch_is_imported_ends_the_process() -> None:
    with subprocess.Popen([sys.executable, "-m", "bandrank", "serve"]) as service:
        maps = Path(f"/proc/{service.pid}/maps")
        wait_until(lambda: "libtorch" in maps.read_text(encoding="utf-8"))
        service.terminate()

        assert service.wait(HANG_S) == 0
