"""Runs `bandrank serve`, or another HTTP service, in another process on a free port of the loopback interface."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

START_TIMEOUT_S = 300.0  # the first start may compile kernels
STOP_TIMEOUT_S = 90.0  # a graceful stop answers what was admitted, for up to the request timeout


@dataclass(frozen=True)
class Service:
    """A ready service. pid: of its process, if it runs on this machine."""

    port: int
    pid: int | None
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        """The base URL, without a path."""
        return f"http://{self.host}:{self.port}"

    def get(self, path: str) -> tuple[int, str]:
        """The status and the body of a path. Raises OSError or HTTPException without an answer."""
        with contextlib.closing(HTTPConnection(self.host, self.port, timeout=10.0)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


@contextmanager
def running_service(settings: Mapping[str, str], log: Path) -> Iterator[Service]:
    """Starts the service, waits until it is ready, and stops it at the end.

    settings: by name without BANDRANK_; those in our own environment are ignored.  log: where its output goes.
    Raises RuntimeError with the end of the log if it dies or is not ready in time.
    """
    port = free_port()
    ours = {"HOST": "127.0.0.1", "PORT": str(port), "LOG_LEVEL": "warning", **settings}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BANDRANK_")}
    environment = inherited | {f"BANDRANK_{name}": value for name, value in ours.items()}
    with running([sys.executable, "-m", "bandrank", "serve"], environment, log, port=port, ready="/readyz") as service:
        yield service


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    port: int,
    ready: str,
    folder: Path | None = None,
) -> Iterator[Service]:
    """Starts the command of a service that will listen on `port`, and stops it at the end.

    ready: a path that answers 200 once the service is ready.  log: where its output goes.  folder: to start it in.
    Raises RuntimeError with the end of the log if it dies or is not ready in time.
    """
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        service = Service(port, process.pid)
        try:
            _wait_until_ready(service, ready, process, log)
            yield service
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port() -> int:
    """A port of the loopback interface on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_until_ready(service: Service, path: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, HTTPException):  # nobody listens yet
            if service.get(path)[0] == HTTPStatus.OK:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)  # the pause before the next look; ends when the process does
    end = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    raise RuntimeError(f"the service was not ready in time (exit status {process.poll()}):\n{end}")
