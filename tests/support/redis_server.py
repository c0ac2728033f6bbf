"""Real Redis servers on loopback ports: started, killed, frozen and started again by a test."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.tasks import HANG_S, wait_until

READY = b"Ready to accept connections"
SENTINEL_READY = b"Sentinel ID is"


class RedisServer:
    """A server with an empty data set in a separate folder; it is not persistent, so that a restart loses its data."""

    def __init__(self, folder: Path, arguments: Sequence[str], *, port: int, ready: bytes = READY) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = port
        self.url = f"redis://127.0.0.1:{port}"
        self.log = folder / "redis.log"
        self._command = [_program(), *arguments]
        self._folder = folder
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server and waits until it accepts connections. Raises RuntimeError with its output otherwise."""
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + HANG_S
        while self._ready not in self.log.read_bytes():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.01)  # the pause before the next look; ends when the process does
                raise RuntimeError(f"redis-server ended:\n{self.log.read_text(errors='replace')}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"redis-server was not ready:\n{self.log.read_text(errors='replace')}")

    def kill(self) -> None:
        """Ends the server at once, like a crash."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def freeze(self) -> None:
        """Makes the server hang: connections stay open, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends the server in any state."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.kill()

    def do(self, *command: Any, **login: Any) -> Any:
        """The answer to one command, sent on a separate connection."""
        never = Retry(NoBackoff(), 0)  # otherwise a wrong password is tried again for seconds
        with redis.Redis(port=self.port, socket_timeout=HANG_S, retry=never, **login) as client:
            return client.execute_command(*command)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@contextlib.contextmanager
def redis_server(folder: Path, *arguments: str, port: int | None = None) -> Iterator[RedisServer]:
    """A running server with further command-line arguments; skips the test where Redis is not installed."""
    port = port or free_port()
    plain = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with _running(RedisServer(folder, [*plain, *arguments], port=port)) as server:
        yield server


@contextlib.contextmanager
def redis_sentinel(folder: Path, *, master: str, port: int, password: str) -> Iterator[RedisServer]:
    """A running Sentinel that watches the server on a port and needs no other Sentinel to replace it."""
    folder.mkdir(parents=True, exist_ok=True)
    sentinel_port = free_port()
    lines = [
        f"port {sentinel_port}",
        "bind 127.0.0.1",
        f"sentinel monitor {master} 127.0.0.1 {port} 1",
        f"sentinel auth-pass {master} {password}",
        f"sentinel down-after-milliseconds {master} 500",
        f"sentinel failover-timeout {master} 2000",
    ]
    (folder / "sentinel.conf").write_text("\n".join(lines) + "\n", encoding="ascii")
    arguments = ["sentinel.conf", "--sentinel"]
    with _running(RedisServer(folder, arguments, port=sentinel_port, ready=SENTINEL_READY)) as server:
        yield server


@contextlib.contextmanager
def redis_cluster(folder: Path, *, nodes: int = 3) -> Iterator[list[RedisServer]]:
    """A running cluster of masters that share the slots evenly."""
    with contextlib.ExitStack() as at_end:
        arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
        servers = [
            at_end.enter_context(redis_server(folder / str(node), *arguments, port=free_port(cluster=True)))
            for node in range(nodes)
        ]
        for node, server in enumerate(servers):
            server.do("CLUSTER", "SET-CONFIG-EPOCH", node + 1)
            server.do("CLUSTER", "ADDSLOTS", *range(node * 16384 // nodes, (node + 1) * 16384 // nodes))
            server.do("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        wait_until(lambda: all(_knows_all(server, nodes) for server in servers))
        yield servers


def free_port(*, cluster: bool = False) -> int:
    """A loopback port that nobody uses; for a cluster's node, 10,000 above it is free too."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if not cluster:
                return port
            with socket.create_server(("127.0.0.1", port + 10_000)):
                return port


@contextlib.contextmanager
def _running(server: RedisServer) -> Iterator[RedisServer]:
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _program() -> str:
    path = shutil.which("redis-server")
    if path is None:
        pytest.skip("redis-server is not installed (Debian: redis-server)")
    return path


def _knows_all(server: RedisServer, nodes: int) -> bool:
    info = server.do("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:%d\r\n" % nodes in info
