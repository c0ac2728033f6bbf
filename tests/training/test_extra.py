"""The start of a command: missing libraries, an early Ctrl-C, the number of threads, and arguments without sense."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bandrank_training
import bandrank_training.comparison
from bandrank import cpus
from bandrank_training.__main__ import main


def test_what_is_missing_and_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `make serve` the libraries of the extra are missing; the command says so without a traceback."""
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    monkeypatch.delattr(bandrank_training, "comparison")
    for name in ("comparison", "measures", "__main__"):
        monkeypatch.delitem(sys.modules, f"bandrank_training.{name}", raising=False)

    with pytest.raises(SystemExit, match=r"ir_measures.*pip install --editable '\.\[train\]'"):
        runpy.run_module("bandrank_training")


@pytest.mark.parametrize("library", ["torch", "ir_measures"])
def test_ctrl_c_while_libraries_are_imported_is_told(tmp_path: Path, library: str) -> None:
    """Imports take seconds; Ctrl-C during them has the message and the exit code of a later one."""
    (tmp_path / f"{library}.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "bandrank_training", "compare", "x.json"]

    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)

    assert ended.returncode == 130
    (line,) = ended.stderr.split("\n")[1:-1]
    assert line.startswith("bandrank_training: interrupted; mine, mix, train and fine-tune resume")
    assert ended.stdout == ""


def test_a_command_has_as_many_threads_as_it_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command keeps to its share of the processors, as the service does: more threads than that are far slower."""
    monkeypatch.setattr(cpus, "quota", lambda: 1.0)
    monkeypatch.delenv(cpus.THREADS, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert main(["compare", "none.json"]) == 2
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "arguments",
    [[], ["rank"], ["evaluate"], ["evaluate", "m", "c"], ["evaluate", "m", "c", "--pool", "--run", "x"]]
    + [["evaluate", "m", "c", "--pool", option, "0"] for option in ("--depth", "--limit", "--min-relevance")]
    + [["evaluate", "m", "c", "--pool", "--device", device] for device in ("gpu", "cuda:99")]
    + [["quantise", "m", "--dev", "c", option, "-1"] for option in ("--depth", "--limit")]
    + [["fine-tune", "c", "--most-queries", "-1"], ["lexical", "m", "g", "c", "o", "--most", "0"]]
    + [["score", "g", "m", "o", "--dtype", "int4"], ["score", "g", "m", "o", "--max-tokens", "0"]],
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "usage: python -m bandrank_training" in capsys.readouterr().err
