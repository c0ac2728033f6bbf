"""Recipes that cannot be used, options that do not go with a recipe, and what is said of them."""

from pathlib import Path

import pytest
from support.collections import write_lines
from support.models import tiny_cross_encoder
from support.training import saved, toml, values, write_toy

from bandrank.models.fusion import Fusion
from bandrank_training.__main__ import main
from bandrank_training.recipe import BadRecipe, read_recipe


@pytest.mark.parametrize(
    ("command", "content", "message"),
    [
        ("train", "x = ", "recipe.toml: Invalid value"),
        ("train", "x = " + 9999 * "[", "recipe.toml: "),
        ("train", "stepz = 3", "recipe.toml: unknown keys: stepz"),
        ("train", "\ufeffseed = 3", "recipe.toml: missing keys: data"),  # a byte order mark, from an editor on Windows
        ("train", "seed = 3", "recipe.toml: missing keys: data, losses, model, optimiser, out"),
        ("train", "[optimiser]\nsteps = 'x'", "recipe.toml: optimiser: steps: expected int, got 'x'"),
        ("train", "[optimiser]\nsteps = 0", "recipe.toml: optimiser: steps must be at least 1, got 0"),
        ("train", "[optimiser]\nsteps = 1\nlearning_rate = nan", "learning_rate must be at least 0, got nan"),
        ("train", "[data]\ngroups = 'a.jsonl'", "recipe.toml: data: groups: expected a list, got 'a.jsonl'"),
        ("train", "[data]\ngroups = []", "recipe.toml: data: groups must name a file that `mine` wrote"),
        ("train", "[[losses]]\nname = 'x'", "recipe.toml: losses: loss 'x' is unknown; there are margin_mse,"),
        ("train", "[[losses]]\nname = 'distil'\nteacher = {a = nan}", "teacher: a must have a finite weight, got nan"),
        ("train", "[[losses]]\nname = 'contrastive'\nteacher = {a = 1}\ndenoise = nan", "denoise must be a number"),
        ("train", "[[model_losses]]\nname = 'vectors'\nteacher = 'x'\nweight = -1", "weight must be at least 0, got"),
        ("train", "[dev]\ngroups = 'x'\nevery_steps = 0", "recipe.toml: dev: every_steps must be at least 1, got 0"),
        ("train", "[dev]\ngroups = 'x'\npatience = -1", "patience must be at least 0, got -1"),
        ("mine", "[[sources]]\ncollection = 'x'\nqueries = 'y'", "recipe.toml: sources: queries: 'y' is none of"),
        ("mine", "out = 'x'\ndepth = 0\nsources = []", "recipe.toml: depth must be at least 1, got 0"),
        ("mix", "out = 'x'\nparts = []\n[mining]\nhard = -1", "recipe.toml: mining: hard must be at least 0, got -1"),
        ("mine", "[[sources]]\ncollection = 'x'\nmax_queries = -1", "sources: max_queries must be at least 0, got -1"),
        ("mine", "out = 'x'\ndrawn = -1\nsources = []", "recipe.toml: drawn must be at least 0, got -1"),
        (
            "mix",
            "[[parts]]\ncollection = 'x'\ndomain = ''\nmax_documents = 9\ntitles = -1",
            "titles must be at least 0",
        ),
        ("mix", "out = 'x'\nparts = []", "no query is left"),
        ("mine", "out = 'x'\ndev_out = './x'\nsources = []", "recipe.toml: dev_out: x is the file of `out`"),
        ("mix", "out = 'x'\n[[parts]]\ncollection = 'y/../x'\ndomain = ''\nmax_documents = 9", "would be written over"),
        ("mine", "out = 'x'\nsources = []\n[teachers]\nbm25 = 'x'", "teachers: bm25 is the name of other scores"),
        ("mine", "out = 'x'\n[[sources]]\ncollection = 'none'", "none is no folder; expected one in BEIR layout"),
        ("mine", "out = 'x'\nsources = []\n[teachers]\none = '/none/there'", "there"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    command: str,
    content: str,
    message: str,
) -> None:
    write_lines(tmp_path / "recipe.toml", content)
    monkeypatch.chdir(tmp_path)

    assert main([command, "recipe.toml"]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.startswith("bandrank_training: ")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("option", ["--split", "--out", "--dev-out", "--dev-groups"])
def test_what_a_recipe_says_is_not_said_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    """An option for what the recipe sets would have no effect."""
    write_lines(tmp_path / "recipe.toml", "out = 'x'", "sources = []")

    assert main(["mine", str(tmp_path / "recipe.toml"), option, "7"]) == 2
    assert f"{option} is for a collection; {tmp_path / 'recipe.toml'} has its own" in capsys.readouterr().err


def test_the_groups_to_measure_with_are_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mine", "none", "--out", "x.jsonl", "--dev-out", "x.jsonl"]) == 2
    assert "dev_out: x.jsonl is the file of `out`" in capsys.readouterr().err


def test_no_loss_no_scaled_loss_and_no_file_are_told(tmp_path: Path) -> None:
    paths = write_toy(tmp_path)
    plain = {"out": "x", "model": {}, "data": {"groups": [paths["groups"]]}, "losses": [], "optimiser": {"steps": 1}}
    write_lines(tmp_path / "recipe.toml", toml(plain))
    with pytest.raises(BadRecipe, match=r"recipe\.toml: a recipe needs at least one"):
        read_recipe(tmp_path / "recipe.toml")
    plain["losses"] = [{"name": "ranknet"}]
    write_lines(tmp_path / "recipe.toml", toml(plain | {"precision": "float16"}))
    with pytest.raises(BadRecipe, match=r"recipe\.toml: precision: float16 would need a scaled loss"):
        read_recipe(tmp_path / "recipe.toml")
    write_lines(tmp_path / "recipe.toml", toml(plain | {"seed": 2**32}))
    with pytest.raises(BadRecipe, match="seed must be below"):
        read_recipe(tmp_path / "recipe.toml")
    with pytest.raises(BadRecipe, match=r"none\.toml: No such file or directory$"):
        read_recipe(tmp_path / "none.toml")


def test_a_start_that_adds_to_another_is_told(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A start such as sparse-w4 ranks worse than before if it is trained by itself, and nothing else would say why."""
    saved(tmp_path / "start", tiny_cross_encoder(), Fusion("good", 0.5))
    plain = values(toy, tmp_path / "out", optimiser={"steps": 1}, model={"start": str(tmp_path / "start")})
    write_lines(tmp_path / "recipe.toml", toml(plain))

    assert main(["train", str(tmp_path / "recipe.toml")]) == 0
    assert "adds to 0.5 times the scores of good; without [fusion] the result stands alone" in capsys.readouterr().err
