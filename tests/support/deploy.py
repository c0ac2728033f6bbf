"""The repository's deployable files, and the programs that check them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PASSWORD = "correct-horse"  # noqa: S105 -- of a stand-in


def run(*command: str | Path) -> None:
    """Runs a checker in the repository's root, and fails with its output if the checker does."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def needs_program(name: str, package: str) -> str:
    """The path of a program beside this Python or on PATH; skips the test where it is missing."""
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if path is None:
        pytest.skip(f"{name} is not installed ({package})")
    return path


def image_check() -> list[str]:
    (line,) = re.findall(r"HEALTHCHECK (?:.*\\\n)+ *CMD (\[.*\])", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    command: list[str] = json.loads(line)
    return command


def image_health(port: int, **environment: str) -> int:
    """The exit status of the image's health check, with which a container is healthy (0) or not."""
    python, *options, script = image_check()
    assert (python, script) == ("python", "/opt/bandrank/health.py")
    environment["BANDRANK_PORT"] = str(port)
    command = [sys.executable, *options, DEPLOY / "health.py"]
    return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False).returncode


def load_yaml(path: Path) -> dict[str, Any]:
    """The content of a file that holds a single YAML document."""
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content
