"""Runs other vendors' client libraries, each in its own process, in an environment that has the library."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venv-clients"
SCRIPTS = ROOT / "tests" / "clients" / "asking"
PATIENCE_S = 60.0
# The environment of clients, which inherit PATH alone: no telemetry, no downloads and no proxy.
QUIET = {
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "*",
}


@dataclass(frozen=True)
class Client:
    """A script of tests/clients/asking, and the group of libraries that it runs with."""

    script: str
    group: str

    def __str__(self) -> str:
        return f"{self.script}[{self.group}]"


@dataclass(frozen=True)
class Failure:
    """An exception that reached a library's caller: its message, and the names of its class and then of its bases."""

    kinds: list[str]
    message: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call: results as (index, score, text), or the exception.

    strays: names and addresses of other machines that the library tried to reach, in vain.
    """

    results: list[tuple[int, float, str | None]]
    failure: Failure | None
    strays: set[str]

    @property
    def indices(self) -> list[int]:
        """The indices of the results, best first."""
        return [index for index, _, _ in self.results]


class RunningClient:
    """A client that asks one question after the other."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def ask(self, way: str, **question: Any) -> Outcome:
        """Asks a question in one of the ways that the script offers.

        Raises RuntimeError with the log's end if the process dies or is not done in a minute.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        patience = threading.Timer(PATIENCE_S, self._process.kill)
        patience.start()
        try:
            self._process.stdin.write(json.dumps({"way": way, **question}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            patience.cancel()
        if not line:
            log = self._log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"the client died or was stopped after a minute:\n{log[-3000:]}")
        told = json.loads(line)
        results = [(result["index"], result["score"], result["text"]) for result in told["results"]]
        return Outcome(results, Failure(**told["failure"]) if told["failure"] else None, set(told["strays"]))


@contextmanager
def running_client(client: Client, folder: Path) -> Iterator[RunningClient]:
    """Starts a client with its log and home in a folder. Skips the test if its environment does not exist."""
    environment = ENVIRONMENTS / client.group
    if not (environment / "stamp").exists():
        pytest.skip(
            f"{environment.relative_to(ROOT)} is not there: `make test-clients` installs it from a package index"
        )
    program, suffix = ("node", "cjs") if client.group == "npm" else (f"{environment}/bin/python", "py")
    log = folder / f"{client.script}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, SCRIPTS / f"ask_{client.script}.{suffix}"],
            env=QUIET | {"PATH": os.environ["PATH"], "HOME": str(folder), "NODE_PATH": f"{environment}/node_modules"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    with process:
        try:
            yield RunningClient(process, log)
        finally:
            process.kill()
