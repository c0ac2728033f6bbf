"""Mining that was killed goes on from where it was, and what others wrote stays."""

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fcntl import flock
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
from support.collections import write_collection
from support.disk import full_disk
from support.models import random_text, save_bi_encoder, save_cross_encoder
from support.training import contents, toml

from bandrank_training import miner, mining
from bandrank_training.__main__ import main
from bandrank_training.bm25 import BM25
from bandrank_training.errors import BadInput
from bandrank_training.groups import read_groups
from bandrank_training.locking import locked
from bandrank_training.mining import mine
from bandrank_training.mining_recipe import MiningRecipe, Source
from bandrank_training.mixture import MixtureRecipe, mix
from bandrank_training.placement import CPU, Placement


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection whose queries are the first words of documents."""
    documents = {f"d{n}": random_text(random.Random(n), 12) for n in range(30)}
    queries = {f"q{n}": " ".join(documents[f"d{n}"].split()[:4]) for n in range(6)}
    qrels = {f"q{n}": {f"d{n}": 1} for n in range(6)}
    write_collection(tmp_path / "col", documents=documents, queries=queries, qrels=qrels, split="train")
    return tmp_path


def dying(patch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Interrupts the search of number `at`, and returns a list that collects the queries searched for until then."""
    searched: list[str] = []
    searches, search = count(1), BM25.search

    def dies(index: BM25, queries: Sequence[str], depth: int) -> Iterator[Any]:
        if next(searches) == at:
            raise KeyboardInterrupt
        searched.extend(queries)
        return search(index, queries, depth)

    patch.setattr(BM25, "search", dies)
    return searched


def test_a_killed_run_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sources that were done are not mined again, the groups are those of a whole run, and Ctrl-C prints one line."""
    sources = [{"collection": str(folder / "col"), "queries": each} for each in ("judged", "keywords", "titles")]
    values = {"out": str(folder / "groups.jsonl"), "sources": sources, "depth": 12, "hard": 4}
    (folder / "mine.toml").write_text(toml(values))
    with pytest.MonkeyPatch.context() as patch:
        before = dying(patch, at=3)
        assert main(["mine", str(folder / "mine.toml")]) == 130
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith(
        "bandrank_training: interrupted; mine, mix, train and fine-tune resume when they are run again"
    )
    with pytest.MonkeyPatch.context() as patch:
        after = dying(patch, at=0)
        assert main(["mine", str(folder / "mine.toml")]) == 0

    assert len(before) == 12
    assert len(after) == sum(group.labels is None for group in read_groups(folder / "groups.jsonl"))
    assert sorted(path.name for path in folder.iterdir()) == ["col", "groups.jsonl", "groups.jsonl.kept", "mine.toml"]
    (folder / "whole.toml").write_text(toml(values | {"out": str(folder / "whole.jsonl")}))
    assert main(["mine", str(folder / "whole.toml")]) == 0
    assert (folder / "whole.jsonl").read_bytes() == (folder / "groups.jsonl").read_bytes()


def test_a_finished_run_is_not_done_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only queries of a new source are searched for, or all of them in another version; no vectors are left behind."""
    save_bi_encoder(folder / "retriever")
    out, sources = folder / "groups.jsonl", [{"collection": str(folder / "col")}]
    counts = []
    for more in ([], [], [{"collection": str(folder / "col"), "queries": "titles"}]):
        values = {"out": str(out), "sources": [*sources, *more], "retriever": str(folder / "retriever")}
        (folder / "mine.toml").write_text(toml(values))
        searched = dying(monkeypatch, at=0)
        assert main(["mine", str(folder / "mine.toml")]) == 0
        counts.append(len(searched))

    assert counts == [6, 0, sum(group.labels is None for group in read_groups(out))]
    assert [path.suffix for path in (folder / "groups.jsonl.kept").iterdir() if path.suffix] == [".gz", ".gz"]
    monkeypatch.setattr(mining, "__version__", "next")
    searched = dying(monkeypatch, at=0)
    assert main(["mine", str(folder / "mine.toml")]) == 0
    assert len(searched) == sum(counts)


def test_a_killed_run_goes_on_inside_a_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a source that were done are not mined again, and the groups are those of a whole run."""
    monkeypatch.setattr(miner, "PART", 2)
    recipe = MiningRecipe(str(folder / "groups.jsonl"), (Source(str(folder / "col")),), depth=12, hard=4, drawn=3)
    with monkeypatch.context() as patch:
        before = dying(patch, at=3)
        with pytest.raises(KeyboardInterrupt):
            mine(recipe, kept=folder / "kept")
    with monkeypatch.context() as patch:
        after = dying(patch, at=0)
        assert mine(recipe, kept=folder / "kept") == 6

    assert (len(before), len(after), len({*before, *after})) == (4, 2, 6)
    assert [path.suffix for path in (folder / "kept").iterdir()] == [".gz"]
    mine(replace(recipe, out=str(folder / "whole.jsonl")))
    assert list(read_groups(folder / "groups.jsonl")) == list(read_groups(folder / "whole.jsonl"))


@pytest.mark.parametrize("damaged", ["*.gz", "*.npy"])
def test_a_damaged_file_of_an_earlier_run_is_told(folder: Path, damaged: str) -> None:
    """When the power fails, a file may be left empty: its groups must not be missing silently."""
    retriever = str(save_bi_encoder(folder / "retriever"))
    recipe = MiningRecipe(str(folder / "groups.jsonl"), (Source(str(folder / "col")),), retriever=retriever)
    mine(recipe, kept=folder / "kept")
    for file in (folder / "kept").iterdir():
        file.unlink()
        if file.match(damaged):
            file.touch()

    with pytest.raises(BadInput, match="; delete this file"):
        mine(recipe, kept=folder / "kept")


def test_a_mixture_with_a_damaged_recipe_is_told(tmp_path: Path) -> None:
    for name in ("counts.md", "recipe.json"):
        (tmp_path / name).touch()
    with pytest.raises(BadInput, match=r"recipe\.json: .*; delete the folder"):
        mix(MixtureRecipe(str(tmp_path), ()))


def test_scores_of_another_dtype_are_not_taken_for_these(folder: Path, tmp_path: Path) -> None:
    """What was kept in float32 is mined anew in bfloat16, and found again in float32."""
    save_cross_encoder(folder / "scorer")
    recipe = MiningRecipe("", (Source(str(folder / "col")),), teachers={"scorer": str(folder / "scorer")})
    groups = {}
    for name, dtype in (("exact", torch.float32), ("low", torch.bfloat16), ("again", torch.float32)):
        mine(replace(recipe, out=str(tmp_path / name)), Placement(CPU.device, dtype), kept=tmp_path / "kept")
        groups[name] = (tmp_path / name).read_bytes()
    mine(replace(recipe, out=str(tmp_path / "anew")), Placement(CPU.device, torch.bfloat16))

    assert groups["low"] == (tmp_path / "anew").read_bytes()
    assert groups["low"] != groups["exact"] == groups["again"]
    assert len(list((tmp_path / "kept").iterdir())) == 2


def mixed(folder: Path, out: str) -> int:
    """Mixes the collection's documents into a folder; returns the exit code."""
    parts = [{"collection": folder / "col", "domain": "", "max_documents": 300, "questions": 6, "dev_split": ""}]
    (folder / "mix.toml").write_text(toml({"out": folder / out, "parts": parts, "pieces": [1, 450]}))
    return main(["mix", str(folder / "mix.toml")])


def test_what_another_mines_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two commands that write the same parts would both fail, or mix what they write."""
    out = folder / "groups.jsonl"
    (folder / "mine.toml").write_text(toml({"out": out, "sources": [{"collection": folder / "col"}]}))
    with locked(folder / "groups.jsonl.kept"), locked(folder / "mixture"):
        assert main(["mine", str(folder / "mine.toml")]) == 2
        assert mixed(folder, "mixture") == 2

    assert capsys.readouterr().err.count("another command writes into") == 2
    assert main(["mine", str(folder / "mine.toml")]) == 0
    assert mixed(folder, "mixture") == 0


def test_a_lock_whose_holder_has_just_ended_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is gone, so that another command could lock a new one at the same time."""
    holder = locked(tmp_path)
    holder.__enter__()

    def ends(file: TextIO, operation: int) -> None:
        holder.__exit__(None, None, None)
        flock(file, operation)

    monkeypatch.setattr("bandrank_training.locking.flock", ends)
    with pytest.raises(BadInput, match="another command writes into"), locked(tmp_path):
        pass


def test_a_mixture_is_not_written_over_a_collection(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The texts of a folder that is named by mistake would be lost, or hide those of the mixture."""
    shutil.copytree(folder / "col", folder / "other")
    before = contents(folder / "other")

    assert mixed(folder, "other") == 2

    assert "other holds a collection that is no mixture; choose another `out`" in capsys.readouterr().err
    assert contents(folder / "other") == before


def test_a_full_disk_is_told_with_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit on the size of files stands for a full disk."""
    documents = {f"d{n}": random_text(random.Random(n), 12) for n in range(300)}
    queries, qrels = {"q0": documents["d0"]}, {"q0": {"d0": 1}}
    write_collection(folder / "col", documents=documents, queries=queries, qrels=qrels, split="train")
    with full_disk(3000):
        assert mixed(folder, "mixture") == 2

    assert f"File too large: '{folder / 'mixture' / 'corpus.jsonl.gz'}'" in capsys.readouterr().err
