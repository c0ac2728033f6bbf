"""Toy data for training: a collection with groups that a scorer can learn, and recipes of a few steps."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from support.collections import write_collection
from support.tokenizer import TOKENIZER_FILE, WORDS

from bandrank.models import checkpoint
from bandrank.models.fusion import Fusion
from bandrank.models.plain import parse
from bandrank.models.scorer import Scorer
from bandrank_training.collection import BeirFolder
from bandrank_training.groups import Group, write_groups
from bandrank_training.recipe import TrainingRecipe
from bandrank_training.training import Trainer

CPU = torch.device("cpu")


def toy_documents() -> dict[str, str]:
    """Forty texts of 2 to 9 words."""
    rng = random.Random(0)
    return {f"d{number}": " ".join(rng.sample(WORDS, rng.randint(2, 9))) for number in range(40)}


def toy_groups(collection: Path, documents: dict[str, str], *, count: int, seed: int = 0) -> list[Group]:
    """Groups of five, of which one has the query's first word; teacher "good" scores it highest, "noisy" not always."""
    rng = random.Random(seed)
    ids = sorted(documents)
    groups = []
    for _ in range(count):
        relevant = rng.choice(ids)
        word = rng.choice(documents[relevant].split())
        others = rng.sample([each for each in ids if word not in documents[each].split()], 4)
        candidates = [*others, relevant]
        rng.shuffle(candidates)
        labels = [int(each == relevant) for each in candidates]
        scores = {
            "good": [round(4.0 * label + rng.random(), 3) for label in labels],
            "noisy": [round(label + 2 * rng.random(), 3) for label in labels],
        }
        groups.append(Group(str(collection), f"{word} {rng.choice(WORDS)}", candidates, labels, scores))
    return groups


def write_toy(folder: Path, *, count: int = 12) -> dict[str, Path]:
    """A collection, groups.jsonl and dev.jsonl.gz in the folder; returns their paths."""
    documents = toy_documents()
    collection = write_collection(folder / "toy", documents=documents)
    paths = {"collection": collection, "groups": folder / "groups.jsonl", "dev": folder / "dev.jsonl.gz"}
    write_groups(paths["groups"], toy_groups(collection, documents, count=count))
    write_groups(paths["dev"], toy_groups(collection, documents, count=6, seed=1))
    return paths


def corpus_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The collections whose documents are read from now on, by name."""
    names, read = [], BeirFolder.documents

    def documents(self: BeirFolder) -> Any:
        names.append(self.name)
        return read(self)

    monkeypatch.setattr(BeirFolder, "documents", documents)
    return names


def toml(values: dict[str, Any]) -> str:
    """The values as a TOML file; dicts and lists of dicts are written inline."""

    def plain(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{name} = {plain(item)}" for name, item in value.items()) + "}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(plain, value)) + "]"
        if isinstance(value, bool):
            return str(value).lower()
        return f'"{value}"' if isinstance(value, str | Path) else repr(value)

    return "".join(f"{name} = {plain(value)}\n" for name, value in values.items())


def values(toy: Path, out: Path, start: str = "cross_encoder", **changes: Any) -> dict[str, Any]:
    """A recipe of six steps as plain values. changes: parts to replace; a dict is merged into its part."""
    plain: dict[str, Any] = {
        "out": str(out),
        "model": {"start": str(toy / start)},
        "data": {"groups": [str(toy / "groups.jsonl")], "group_size": 4, "batch_rows": 150},
        "losses": [{"name": "contrastive", "temperature": 0.5}, {"name": "distil", "teacher": {"good": 1.0}}],
        "optimiser": {"steps": 6, "learning_rate": 1e-3, "warmup_steps": 2},
    }
    for name, value in changes.items():
        plain[name] = plain.get(name, {}) | value if isinstance(value, dict) else value
    return plain


def recipe(toy: Path, out: Path, start: str = "cross_encoder", **changes: Any) -> TrainingRecipe:
    """`values` as a recipe."""
    parsed: TrainingRecipe = parse(TrainingRecipe, values(toy, out, start, **changes))
    return parsed


def train(toy: Path, out: Path, start: str = "cross_encoder", **changes: Any) -> Trainer:
    """Trains to the end and returns the trainer."""
    trainer = Trainer(recipe(toy, out, start, **changes), device=CPU)
    trainer.run()
    return trainer


def saved(folder: Path, scorer: Scorer, fusion: Fusion | None = None) -> str:
    """Saves a scorer with the tiny tokenizer, and returns its folder."""
    checkpoint.save(scorer, folder, tokenizer=TOKENIZER_FILE, fusion=fusion)
    return str(folder)


def contents(folder: Path) -> dict[Path, bytes]:
    """The bytes of all files below a folder, to see that none was overwritten."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
