"""The training package where bandrank was installed to serve alone, without the libraries of its extra."""

import runpy
import sys

import pytest

import bandrank_training
import bandrank_training.comparison


def test_what_is_missing_and_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as after `make serve`: no traceback."""
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    monkeypatch.delattr(bandrank_training, "comparison")
    for name in ("comparison", "measures", "__main__"):
        monkeypatch.delitem(sys.modules, f"bandrank_training.{name}", raising=False)

    with pytest.raises(SystemExit, match=r"ir_measures.*pip install --editable '\.\[train\]'"):
        runpy.run_module("bandrank_training")
