"""A real Prometheus server on a free port."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.deploy import needs_program

PACKAGE = "Debian: prometheus"


@contextmanager
def prometheus(config: Path, storage: Path) -> Iterator[str]:
    """Runs a server and yields its URL once it is ready. storage: the folder of its data, new or old."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [needs_program("prometheus", PACKAGE), f"--config.file={config}", f"--storage.tsdb.path={storage}"]
    command.append(f"--web.listen-address={address}")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            log = []
            for line in process.stderr:
                log.append(line)
                if "Server is ready" in line:
                    break
            assert process.poll() is None, "".join(log)
            yield f"http://{address}"
        finally:
            process.terminate()
            process.stderr.read()
