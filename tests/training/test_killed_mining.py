"""Mining that is killed goes on where it was."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.collections import write_collection
from support.models import random_text, save_cross_encoder
from support.training import toml

from bandrank_training import miner
from bandrank_training.__main__ import main
from bandrank_training.bm25 import BM25
from bandrank_training.groups import Group, read_groups
from bandrank_training.miner import Miner
from bandrank_training.mining import mine
from bandrank_training.mining_recipe import MiningRecipe, Source
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
    mine_source = Miner.mine

    def dies_at(queries: str) -> Callable[[Miner, Path | None], Iterator[Group]]:
        def mine(miner: Miner, kept: Path | None) -> Iterator[Group]:
            if miner.source.queries == queries:
                raise KeyboardInterrupt
            mined_from.append(miner.source.queries)
            return mine_source(miner, kept)

        return mine

    monkeypatch.setattr(Miner, "mine", dies_at("titles"))
    assert main(["mine", str(folder / "mine.toml")]) == 130
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith(
        "bandrank_training: interrupted; given again, mine, mix, train and fine-tune go on from"
    )
    assert mined_from == ["judged", "keywords"]
    monkeypatch.setattr(Miner, "mine", dies_at("none"))
    assert main(["mine", str(folder / "mine.toml")]) == 0

    assert mined_from == ["judged", "keywords", "titles"]
    assert sorted(path.name for path in folder.iterdir()) == ["col", "groups.jsonl", "mine.toml"]
    (folder / "whole.toml").write_text(toml(values | {"out": str(folder / "whole.jsonl")}))
    assert main(["mine", str(folder / "whole.toml")]) == 0
    assert (folder / "whole.jsonl").read_bytes() == (folder / "groups.jsonl").read_bytes()


def test_a_killed_run_goes_on_inside_a_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a collection of one's own, which is one source: the parts that were done are not made again, and the groups
    are those of a run that was not killed.
    """
    monkeypatch.setattr(miner, "PART", 2)
    recipe = MiningRecipe(str(folder / "groups.jsonl"), (Source(str(folder / "col")),), depth=12, hard=4, drawn=3)
    asked: list[str] = []
    search = BM25.search

    def dies_at_the_third(index: BM25, queries: Sequence[str], depth: int) -> Iterator[Any]:
        if len(asked) == 4:
            raise KeyboardInterrupt
        asked.extend(queries)
        return search(index, queries, depth)

    with monkeypatch.context() as patch:
        patch.setattr(BM25, "search", dies_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            mine(recipe, kept=folder / "kept")
        asked.append("the end of the first run")
        assert mine(recipe, kept=folder / "kept") == 6

    assert len(set(asked)) == len(asked) == 7
    assert [path.suffix for path in (folder / "kept").iterdir()] == [".gz"]
    mine(replace(recipe, out=str(folder / "whole.jsonl")))
    assert list(read_groups(folder / "groups.jsonl")) == list(read_groups(folder / "whole.jsonl"))


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
