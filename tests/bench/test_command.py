"""python -m bandrank_bench: one command for each benchmark."""

import sys

import pytest

from bandrank_bench import reproduction
from bandrank_bench.__main__ import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_lists_its_options(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A benchmark shows its help, with the command to type, without the libraries that it measures."""
    monkeypatch.setattr(sys, "argv", ["bandrank_bench", command, "--help"])
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "1")
    with pytest.raises(SystemExit, match="0"):
        main()

    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m bandrank_bench {command} ")
    assert "--out" in shown


def test_an_unknown_command_gets_a_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bandrank_bench", "fly"])

    assert main() == 2
    listed = capsys.readouterr().err
    assert set(COMMANDS) <= {line.split()[0] for line in listed.splitlines() if line}


def test_scorers_that_precompute_take_no_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        reproduction.main(["precomputing", "--data", "a", "--groups", "b", "--start", "c"])

    assert "--start is for windows" in capsys.readouterr().err
