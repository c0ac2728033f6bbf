"""A service in a process of its own whose batches the test lets through, one by one."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from support.gated_service import ARRIVED_FD, PASS, PASSES_FD
from support.plain_http import get, post
from support.server import RunningService, running_service

BODY = {"query": "who", "candidates": ["she", "man"], "raw_scores": True}
TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class GatedService:
    """A service whose batches the test lets through. arrived, passes: the pipes of gated_service.py."""

    service: RunningService
    arrived: int
    passes: int

    def wait_for_batch(self) -> None:
        """Returns once a batch is held."""
        assert os.read(self.arrived, 1)

    def let_through(self, how: bytes = PASS, *, batches: int = 1) -> None:
        """Lets this many batches pass, or ends the scoring thread if `how` is DIE."""
        os.write(self.passes, how * batches)

    def rerank(self) -> httpx.Response:
        """Sends POST /rerank on a separate connection."""
        return post(f"{self.service.url}/rerank", json=BODY)

    def get(self, path: str) -> httpx.Response:
        """Sends GET on a separate connection."""
        return get(f"{self.service.url}{path}")

    def waiting_tasks(self) -> float:
        return self.service.scrape().value("bandrank_waiting_tasks")


@contextlib.contextmanager
def gated_service(folder: Path, *arguments: str, ready: bool = True) -> Iterator[GatedService]:
    """A service whose batches are held, save for the self-test at the start if it shall be `ready`, until the end of
    the test.
    """
    arrived, theirs_arrived = os.pipe()
    theirs_passes, passes = os.pipe()
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {ARRIVED_FD: str(theirs_arrived), PASSES_FD: str(theirs_passes), "PYTHONPATH": path}
    if ready:
        os.write(passes, PASS)
    with contextlib.ExitStack() as at_end:
        at_end.callback(os.close, arrived)
        running = running_service(
            folder,
            module="support.gated_service",
            arguments=["--device", "cpu", *arguments],
            environment=environment,
            pass_fds=(theirs_arrived, theirs_passes),
            start_timeout_s=180.0 if ready else None,
        )
        service = at_end.enter_context(running)
        for descriptor in (theirs_arrived, theirs_passes):
            os.close(descriptor)
        at_end.callback(os.close, passes)  # lets everything through
        gated = GatedService(service, arrived, passes)
        gated.wait_for_batch()
        yield gated
