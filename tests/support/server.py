"""The real service in a process of its own, on a free loopback port."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.plain_http import get


@dataclass(frozen=True)
class RunningService:
    """A service, whose output goes to `log`. ready: the path that answers 200 once the service is ready."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    ready: str = "/readyz"

    def terminate(self) -> None:
        """Sends SIGTERM and returns at once."""
        self.process.send_signal(signal.SIGTERM)

    def exit_status(self, timeout_s: float = 30.0) -> int:
        """Waits for the end of the process. Raises TimeoutExpired if it does not come."""
        return self.process.wait(timeout=timeout_s)

    def wait_until_ready(self, timeout_s: float = 180.0) -> None:
        """Waits until the path `ready` answers 200. Raises RuntimeError with the log's end if it does not."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if get(self.url + self.ready, timeout=10.0).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass  # nobody listens yet
            if time.monotonic() > deadline:
                raise RuntimeError(f"the service was not ready in time:\n{_tail(self.log)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self.process.wait(timeout=0.2)  # the pause before the next look; ends when the process does
                raise RuntimeError(f"the service ended with status {status} before it was ready:\n{_tail(self.log)}")

    def scrape(self) -> "Scrape":
        return Scrape(get(f"{self.url}/metrics").text)


@contextlib.contextmanager
def running_service(
    folder: Path,
    *,
    module: str = "bandrank",
    verb: str = "serve",
    ready: str = "/readyz",
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    start_timeout_s: float | None = 180.0,
) -> Iterator[RunningService]:
    """Starts `bandrank serve`, waits until /readyz answers 200, and stops it at the end.

    folder: where its log goes.  module, verb, ready: the Python module to run, its first argument and the path to ask.
    arguments: further flags.  environment: added to that of this process, of which BANDRANK_* is left out.
    pass_fds: descriptors that it inherits.  start_timeout_s: None waits for nothing, not even until it listens.
    Raises RuntimeError with the log's end if the service dies or is not ready in time.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    service_environment = {name: value for name, value in os.environ.items() if not name.startswith("BANDRANK_")}
    service_environment |= {"BANDRANK_HOST": "127.0.0.1", "BANDRANK_PORT": str(port), **(environment or {})}
    log = folder / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, verb, *arguments],
            env=service_environment,
            pass_fds=pass_fds,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    service = RunningService(f"http://127.0.0.1:{port}", process, log, ready)
    try:
        if start_timeout_s is not None:
            service.wait_until_ready(start_timeout_s)
        yield service
    finally:
        if process.poll() is None:
            service.terminate()
            try:
                service.exit_status()
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


class Scrape:
    """The samples of one GET /metrics."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that carry these labels. Raises KeyError if the name is unknown."""
        named = [sample for sample in self._samples if sample.name == name]
        if not named:
            raise KeyError(f"no series {name} in /metrics")
        return sum(sample.value for sample in named if labels.items() <= sample.labels.items())
