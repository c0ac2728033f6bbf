"""`score`: it adds a scorer's scores to those in the groups."""

from pathlib import Path

import pytest
from support.models import tiny_bi_encoder
from support.training import saved, write_toy

from bandrank.models.loading import load_model
from bandrank_training.__main__ import main
from bandrank_training.dev import DevSet
from bandrank_training.groups import read_groups
from bandrank_training.scoring import score_offline


def test_scores_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores are added under the name of the scorer's folder, nothing else changes, and progress ends at 100%."""
    groups, model, out = write_toy(tmp_path)["dev"], tmp_path / "fast", tmp_path / "out.jsonl"
    saved(model, tiny_bi_encoder())
    monkeypatch.chdir(model)

    assert main(["score", str(groups), ".", str(out)]) == 0

    assert "fast: 100%" in capsys.readouterr().err
    expected = DevSet.read(groups).scores(score_offline(load_model(str(model))))
    for before, after, scores in zip(read_groups(groups), read_groups(out), expected, strict=True):
        assert after.scores.pop("fast") == pytest.approx(scores, abs=1e-5)
        assert after == before


def test_scores_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups, out = write_toy(tmp_path)["groups"], tmp_path / "out.jsonl"
    saved(tmp_path / "fast", tiny_bi_encoder())

    assert main(["score", str(groups), str(tmp_path / "fast"), str(out), "--name", "good"]) == 2
    assert "has scores of good already; choose another --name" in capsys.readouterr().err
    assert not out.exists()
