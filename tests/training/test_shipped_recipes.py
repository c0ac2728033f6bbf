"""The recipes that come with bandrank can be read, and fit the scorers that come with it."""

from pathlib import Path

import pytest

from bandrank.models import checkpoint, shipped
from bandrank_training.mining import MiningRecipe
from bandrank_training.recipe import TrainingRecipe, read_recipe

RECIPES = sorted((Path(__file__).parents[2] / "training" / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.stem))
def test_it_can_be_read(path: Path) -> None:
    """As what `mine` or `train` takes."""
    kind = MiningRecipe if path.stem.startswith("mine-") else TrainingRecipe
    assert isinstance(read_recipe(path, kind), kind)


@pytest.mark.parametrize("name", ["fine-tune", "sparse-w4"])
def test_the_default_accurate_scorer_is_trained_for_the_sum_that_is_served(name: str) -> None:
    """Else what it learns to add would be weighed otherwise."""
    (path,) = (path for path in RECIPES if path.stem == name)
    assert read_recipe(path).fusion == checkpoint.load_fusion(shipped.FOLDER / "sparse-w4")
