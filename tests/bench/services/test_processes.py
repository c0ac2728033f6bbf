"""Services that are stopped between their turns, and the memory that services hold."""

import mmap
import os
import signal
import subprocess
import sys

from support.processes import state

from bandrank_bench.service import Service
from bandrank_bench.services.memory import Memory
from bandrank_bench.services.resting import awake, resting


def test_a_service_rests_but_for_its_turns() -> None:
    """A service is stopped between its turns; at the end it runs again, so that it can be terminated."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        service = Service(1, process.pid)
        with resting(service):
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            with awake(service):
                os.waitid(os.P_PID, process.pid, os.WCONTINUED)
                assert state(process.pid) != "T"
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


def test_a_service_elsewhere_is_left_alone() -> None:
    """A service on another machine has no process here that could be stopped."""
    with resting(Service(1, None, "service")), awake(Service(1, None, "service")):
        pass


def test_memory_that_is_touched_is_resident() -> None:
    """Memory that was given back still counts in the peak."""
    before = Memory.of(os.getpid())
    with mmap.mmap(-1, 64 * 2**20) as touched:  # a mapping of its own, not memory that the allocator has kept
        touched.write(b"x" * len(touched))
        during = Memory.of(os.getpid())

    assert during.resident > before.resident + 50
    assert during.proportional > before.proportional + 50
    assert Memory.of(os.getpid()).peak >= during.resident - 1
