"""The Makefile: the environment it makes, the settings its arguments become, and when `make test` fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def script(path: Path, *lines: str) -> Path:
    """Writes an executable of these lines of shell and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)
    return path


def make(python: Path, environment: Path) -> subprocess.CompletedProcess[str]:
    """Makes the virtual environment at this path, with this interpreter."""
    target = [f"PYTHON={python}", f"VENV={environment}", str(environment / "runtime.stamp")]
    return subprocess.run(["make", *target], cwd=ROOT, capture_output=True, text=True, check=False)


def test_an_interpreter_that_is_too_old_makes_no_environment(tmp_path: Path) -> None:
    """An environment left behind would be used again, even for an interpreter that is new enough."""
    older = f'exec {sys.executable} -c "import sys; sys.version_info = (3, 10)\n$2"'
    ended = make(script(tmp_path / "python3.10", '[ "$1" = -c ] || exit 0', older), tmp_path / "venv")

    assert ended.returncode != 0
    assert "python3.10 is Python 3.10; bandrank needs 3.11 or newer: make ... PYTHON=" in ended.stderr
    assert "creating" not in ended.stdout


def test_an_environment_without_pip_is_made_again(tmp_path: Path) -> None:
    """Half an environment is left behind where the distribution's package for `venv` is missing."""
    asked = tmp_path / "asked"
    script(tmp_path / "venv" / "bin" / "python", "exit 1")
    make(script(tmp_path / "python3", f'echo "$@" >> {asked}', '[ "$1" != -m ]'), tmp_path / "venv")

    assert f"-m venv {tmp_path / 'venv'}" in asked.read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", ["serve", "check"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["MODEL=asked", "PORT=1"], {"model": "asked", "port": "1"}),
        (["MODEL=asked"], {"model": "asked", "port": "2"}),
        ([], {"model": "exported", "port": "2"}),
    ],
)
def test_an_argument_wins_over_what_is_exported(
    verb: str, arguments: list[str], expected: dict[str, str], tmp_path: Path
) -> None:
    """Arguments typed for one run override the exported variables, for the model as for the port."""
    script(tmp_path / "bin" / "bandrank", 'echo "$1 $BANDRANK_MODEL $BANDRANK_PORT"')
    (tmp_path / "runtime.stamp").touch()
    exported = os.environ | {"BANDRANK_MODEL": "exported", "BANDRANK_PORT": "2"}
    ended = subprocess.run(
        ["make", "--no-print-directory", verb, f"VENV={tmp_path}", *arguments],
        cwd=ROOT,
        env=exported,
        capture_output=True,
        text=True,
        check=True,
    )

    told = dict(zip(("verb", "model", "port"), ended.stdout.split(), strict=True))
    assert told == expected | {"verb": verb} | ({"port": "2"} if verb == "check" else {})  # `check` opens no port


@pytest.mark.parametrize(("types", "tests"), [(0, 0), (1, 0), (0, 1)])
def test_types_and_tests_have_to_pass(types: int, tests: int, tmp_path: Path) -> None:
    """The two run side by side, and `make test` fails if either of them fails."""
    for name, status in {"ruff": 0, "lint-imports": 0, "mypy": types, "pytest": tests}.items():
        script(tmp_path / "bin" / name, f"exit {status}")
    for stamp in ("runtime.stamp", "dev.stamp"):
        (tmp_path / stamp).touch()
    ended = subprocess.run(
        ["make", "test", f"VENV={tmp_path}", "PROGRAMS="], cwd=ROOT, capture_output=True, check=False
    )

    assert (ended.returncode == 0) is (types == tests == 0)
