"""The recipes that come with bandrank can be read, fit the scorers that come with it, and train what README says."""

import random
from dataclasses import fields
from pathlib import Path

import pytest
from support.collections import write_collection
from support.training import toy_documents

from bandrank.models import checkpoint, shipped
from bandrank.models.architectures import ARCHITECTURES
from bandrank.models.plain import parse
from bandrank_training.__main__ import main
from bandrank_training.mining_recipe import MiningRecipe
from bandrank_training.mixture import MixtureRecipe
from bandrank_training.recipe import TrainingRecipe, read_recipe

FOLDER = Path(__file__).parents[2] / "training" / "recipes"
RECIPES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.stem))
def test_recipes_can_be_read(path: Path) -> None:
    kind = (
        MiningRecipe if path.stem.startswith("mine-") else MixtureRecipe if path.stem == "mixture" else TrainingRecipe
    )
    assert isinstance(read_recipe(path, kind), kind)


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if not path.stem.startswith(("mine-", "mixture"))], ids=lambda path: path.stem
)
def test_its_config_is_one_of_its_architecture(path: Path) -> None:
    """The config is checked with an encoder of MiniLM's shape; the start itself is not loaded."""
    model = read_recipe(path).model
    name = model.architecture or ("bi_encoder" if path.stem in {"bi-encoder", "leaf"} else "cross_encoder")
    encoder = checkpoint.load(shipped.FOLDER / "sparse-w4").config.encoder
    tokens = {"cls_id": 101, "sep_id": 102, "mask_id": 103, "query_marker": 1, "candidate_marker": 2}
    kind = ARCHITECTURES[name].config_class
    known = {each: value for each, value in tokens.items() if each in {field.name for field in fields(kind)}}

    assert isinstance(parse(kind, {"encoder": encoder, **known} | dict(model.config)), kind)


@pytest.mark.parametrize("name", ["sparse-w4", "broader"])
def test_the_default_accurate_scorer_is_trained_for_the_sum_that_is_served(name: str) -> None:
    """With another fusion, the scorer would learn to add to another sum than the one that is served."""
    assert read_recipe(FOLDER / f"{name}.toml").fusion == checkpoint.load_fusion(shipped.FOLDER / "sparse-w4")


@pytest.mark.parametrize("name", ["leaf", "mix-b", "broader"])
def test_what_the_cards_call_unseen_is_left_out(name: str) -> None:
    """The cards name all of the seven lists whose domains a training by the recipe does not see."""
    without = read_recipe(FOLDER / f"{name}.toml").data.without
    parts = read_recipe(FOLDER / "mixture.toml", MixtureRecipe).parts
    seen = {part.name for part in parts if part.domain not in without}
    lists = read_recipe(FOLDER / "mine-lists.toml", MiningRecipe).sources
    unseen = {Path(each.collection).name for each in lists} - seen

    assert set(without) <= {part.domain for part in parts}
    assert (len(parts), len(seen), len(unseen)) == (21, 12, 7)
    for card in ("mix-b", "sparse-w4"):
        text = (shipped.FOLDER / card / "README.md").read_text(encoding="utf-8")
        assert all(collection in text for collection in unseen)


@pytest.mark.slow
def test_the_lines_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a folder of one's own, the commands make a checkpoint with the fusion of its start, and measure it."""
    documents = toy_documents()
    queries = {f"q{n}": " ".join(random.Random(n).sample(documents[f"d{n}"].split(), 2)) for n in range(10)}
    qrels = {f"q{n}": {f"d{n}": 1} for n in range(10)}
    for split in ("train", "test"):
        write_collection(tmp_path / "own", documents=documents, queries=queries, qrels=qrels, split=split)
    monkeypatch.chdir(tmp_path)

    assert main(["fine-tune", "own"]) == 0
    assert main(["evaluate", "runs/fine-tuned", "own", "--pool"]) == 0

    served = checkpoint.load_fusion(shipped.FOLDER / "sparse-w4")
    assert checkpoint.load_fusion(tmp_path / "runs" / "fine-tuned") == served
