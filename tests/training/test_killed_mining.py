"""Mining that is killed goes on where it was."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.collections import write_collection
from support.models import random_text, save_cross_encoder
from support.training import toml

from bandrank_training import mining
from bandrank_training.__main__ import main
from bandrank_training.groups import Group
from bandrank_training.mining import MiningRecipe, Source, mine
from bandrank_training.placement import CPU, Placement


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection whose queries are the first words of documents."""
    documents = {f"d{n}": random_text(random.Random(n), 12) for n in range(30)}
    queries = {f"q{n}": " ".join(documents[f"d{n}"].split()[:4]) for n in range(6)}
    qrels = {f"q{n}": {f"d{n}": 1} for n in range(6)}
    write_collection(tmp_path / "col", documents=documents, queries=queries, qrels=qrels, split="train")
    return tmp_path


def test_a_killed_run_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sources that were done are not mined again, and at the end nothing but the groups is left. Ctrl-C is one line."""
    sources = [{"collection": str(folder / "col"), "queries": each} for each in ("judged", "keywords", "titles")]
    values = {"out": str(folder / "groups.jsonl"), "sources": sources, "depth": 12, "hard": 4}
    (folder / "mine.toml").write_text(toml(values))
    mined_from: list[str] = []
    mine_source = mining._mine_source

    def dies_at(queries: str) -> Callable[..., Iterator[Group]]:
        def mine(recipe: MiningRecipe, source: Source, *more: Any) -> Iterator[Group]:
            if source.queries == queries:
                raise KeyboardInterrupt
            mined_from.append(source.queries)
            return mine_source(recipe, source, *more)

        return mine

    monkeypatch.setattr(mining, "_mine_source", dies_at("titles"))
    assert main(["mine", str(folder / "mine.toml")]) == 130
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith(
        "bandrank_training: interrupted; given again, mine, mix, train and fine-tune go on from"
    )
    assert mined_from == ["judged", "keywords"]
    monkeypatch.setattr(mining, "_mine_source", dies_at("none"))
    assert main(["mine", str(folder / "mine.toml")]) == 0

    assert mined_from == ["judged", "keywords", "titles"]
    assert sorted(path.name for path in folder.iterdir()) == ["col", "groups.jsonl", "mine.toml"]
    (folder / "whole.toml").write_text(toml(values | {"out": str(folder / "whole.jsonl")}))
    assert main(["mine", str(folder / "whole.toml")]) == 0
    assert (folder / "whole.jsonl").read_bytes() == (folder / "groups.jsonl").read_bytes()


def test_scores_of_another_dtype_are_not_taken_for_these(folder: Path, tmp_path: Path) -> None:
    """What was kept in float32 is mined anew in bfloat16, and found again in each."""
    save_cross_encoder(folder / "scorer")
    recipe = MiningRecipe("", (Source(str(folder / "col")),), {"scorer": str(folder / "scorer")})
    groups = {}
    for name, dtype in (("exact", torch.float32), ("low", torch.bfloat16), ("again", torch.float32)):
        mine(replace(recipe, out=str(tmp_path / name)), Placement(CPU.device, dtype), kept=tmp_path / "kept")
        groups[name] = (tmp_path / name).read_bytes()
    mine(replace(recipe, out=str(tmp_path / "anew")), Placement(CPU.device, torch.bfloat16))

    assert groups["low"] == (tmp_path / "anew").read_bytes()
    assert groups["low"] != groups["exact"] == groups["again"]
    assert len(list((tmp_path / "kept").iterdir())) == 2
