"""training/README.md names every command, every field of a recipe and of a group, and every loss."""

from dataclasses import fields
from pathlib import Path

import pytest

from bandrank.models.fusion import Fusion
from bandrank_training.__main__ import COMMANDS
from bandrank_training.groups import Group
from bandrank_training.losses import LOSSES, LossRecipe
from bandrank_training.model_losses import MODEL_LOSSES
from bandrank_training.recipe import (
    DataRecipe,
    DevRecipe,
    ModelLossRecipe,
    ModelRecipe,
    OptimiserRecipe,
    TrainingRecipe,
)

README = (Path(__file__).parents[2] / "training" / "README.md").read_text(encoding="utf-8")
TABLES = {
    "(top)": TrainingRecipe,
    "`[model]`": ModelRecipe,
    "`[fusion]`": Fusion,
    "`[data]`": DataRecipe,
    "`[[losses]]`": LossRecipe,
    "`[[model_losses]]`": ModelLossRecipe,
    "`[optimiser]`": OptimiserRecipe,
    "`[dev]`": DevRecipe,
}


def test_every_command_has_a_row() -> None:
    rows = [
        line.split()[1].removeprefix("`") for line in README.splitlines() if line.startswith("| `") and "[" not in line
    ]

    assert rows == list(COMMANDS)


@pytest.mark.parametrize("table", TABLES)
def test_every_field_of_a_recipe_is_named(table: str) -> None:
    """A field is in the row of its table; fields that are tables have rows of their own."""
    (row,) = (line for line in README.splitlines() if line.startswith(f"| {table} |"))
    named = {
        field.name
        for field in fields(TABLES[table])
        if f"`[{field.name}]`" not in TABLES and f"`[[{field.name}]]`" not in TABLES
    }

    assert {name for name in named if f"`{name}`" not in row} == set()


def test_every_loss_and_every_field_of_a_group_is_named() -> None:
    names = {*(f"`{name}`" for name in (*LOSSES, *MODEL_LOSSES)), *(f'"{field.name}"' for field in fields(Group))}

    assert {name for name in names if name not in README} == set()
