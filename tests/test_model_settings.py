"""The models to serve: one that the settings name, or those of a file or a folder."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.models import save_bi_encoder

from bandrank.__main__ import main
from bandrank.errors import BadSetting
from bandrank.model_settings import ModelSettings
from bandrank.models.shipped import FAST
from bandrank.settings import Settings, explain

ONE = {"name": "one", "model": "org/one"}


def toml(path: Path, *models: dict[str, Any]) -> str:
    """Writes a file that lists these models and returns its path."""
    lines = [line for model in models for line in ("[[models]]", *(f"{key} = {text!r}" for key, text in model.items()))]
    lines = [line.replace(" = True", " = true") for line in lines]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def served(models: str, **more: Any) -> tuple[ModelSettings, ...]:
    """The models that a file or a folder lists."""
    return Settings(models=models, **more).served_models()


def test_one_model_is_named_by_the_settings() -> None:
    facts: dict[str, Any] = {"model": "org/m", "revision": "r", "fast_model": "f", "fast_revision": "s"}
    facts |= {"cascade_depth": 3, "dtype": "float16"}

    assert Settings(**facts).served_models() == (ModelSettings(name="org/m", **facts),)
    assert [model.name for model in Settings().served_models()] == ["sparse-w4"]


def test_a_folder_is_served_under_its_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients need not know where the folder is. A hub id is no folder and keeps both of its parts."""
    (tmp_path / "org" / "fine-tuned").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "org")
    folders = [str(tmp_path / "org" / "fine-tuned"), f"{tmp_path}/org/fine-tuned/", "fine-tuned", "./fine-tuned"]

    served = [Settings(model=folder).served_models()[0] for folder in folders]

    assert [(model.name, model.model) for model in served] == [("fine-tuned", folder) for folder in folders]
    assert Settings(model="org/fine-tuned").served_models()[0].name == "org/fine-tuned"


def test_a_file_lists_models(tmp_path: Path) -> None:
    """The models keep the file's order, and the settings supply the fields that a model leaves out."""
    two: dict[str, Any] = {"name": "two", "model": "org/two", "revision": "r", "fast_model": "f", "fast_revision": "s"}
    two |= {"cascade_depth": 3, "dtype": "float16", "similarity": "cosine", "vector_size": 64}
    two |= {"aliases": ["2", "ii"], "first_stage_weight": 0.5, "pooled": True}
    path = toml(tmp_path / "models.toml", ONE, two)
    shared: dict[str, Any] = {"cascade_depth": 9, "dtype": "bfloat16", "similarity": "dot", "vector_size": 32}
    shared |= {"first_stage_weight": 0.25, "pooled": False}

    assert served(path, **shared) == (
        ModelSettings(name="one", model="org/one", **shared),
        ModelSettings(**two | {"aliases": ("2", "ii")}),
    )


def test_folders_are_relative_to_the_file(tmp_path: Path) -> None:
    """Absolute paths, hub ids and names of shipped models stay unchanged."""
    (tmp_path / "here").mkdir()
    names = ["here", "./here", "./missing", str(tmp_path), "sparse-w4", "org/model"]
    path = toml(tmp_path / "models.toml", *({"name": name, "model": name, "fast_model": name} for name in names))
    expected = [str(tmp_path / "here")] * 2 + [str(tmp_path / "missing"), str(tmp_path), "sparse-w4", "org/model"]

    assert [model.model for model in served(path)] == expected
    assert [model.fast_model for model in served(path)] == expected
    assert served(toml(tmp_path / "models.toml", ONE))[0].fast_model == ""


def test_a_folder_of_checkpoints(tmp_path: Path) -> None:
    """Each sub-folder with a config.json is a model, and models are sorted by name."""
    for name in ("b", "a", "c"):
        (tmp_path / name).mkdir()
    for name in ("b", "a"):
        (tmp_path / name / "config.json").write_text("{}")

    assert served(str(tmp_path), dtype="float16") == tuple(
        ModelSettings(name=name, model=str(tmp_path / name), cascade_depth=30, dtype="float16") for name in ("a", "b")
    )


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    """The folder of a single checkpoint is refused too."""
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(BadSetting, match=r"none in it has a config\.json") as refused:
        served(str(tmp_path))
    assert str(refused.value).startswith(str(tmp_path))


def test_a_shadow_is_a_served_model_or_one_beside_them(tmp_path: Path) -> None:
    """The name of a served model means that model; any other name is loaded as it would be served."""
    both = toml(tmp_path / "models.toml", ONE | {"dtype": "float16"}, {"name": "two", "model": "org/two"})
    (tmp_path / "best").mkdir()

    def shadow(name: str, **more: Any) -> ModelSettings | None:
        settings = Settings(shadow_model=name, cascade_depth=7, **more)
        return settings.shadow_among(settings.served_models())

    assert shadow("two", models=both) == ModelSettings(name="two", model="org/two", cascade_depth=7, dtype="auto")
    assert shadow("sparse-w4") == Settings(cascade_depth=7).served_models()[0]
    beside = ModelSettings(name="org/three", model="org/three", cascade_depth=7, dtype="float16")
    assert shadow("org/three", models=both, dtype="float16") == beside
    assert shadow("org/three", models=both, dtype="float16", vector_size=8) == beside  # it may have no vectors
    in_folder = shadow(str(tmp_path / "best"))
    assert in_folder is not None
    assert (in_folder.name, in_folder.model) == ("best", str(tmp_path / "best"))
    assert shadow("") is shadow("two", models=both, shadow_share=0) is None


def test_a_shadow_beside_a_model_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """The metrics of two models of one name could not be told apart."""
    for parent in ("a", "b"):
        (tmp_path / parent / "best").mkdir(parents=True)
    settings = Settings(model=str(tmp_path / "a" / "best"), shadow_model=str(tmp_path / "b" / "best"))

    with pytest.raises(BadSetting, match="shadow_model must not have the name of a served model, 'best'"):
        settings.shadow_among(settings.served_models())


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([ONE, ONE | {"name": "two", "dtype": "int3"}],
         "models[1].dtype must be 'auto', 'float32', 'bfloat16', 'float16' or 'int8', got 'int3'"),
        ([ONE | {"cascade_depth": 0}], "models[0].cascade_depth must be greater than 0, got 0"),
        ([ONE | {"revison": "r"}], "models[0].revison is not a setting; check its spelling"),
        ([{"name": "one"}], "models[0].model is missing"),
        ([{"model": "org/one"}], "models[0].name is missing"),
        ([ONE | {"name": ""}], "models[0].name must have at least 1 character, got ''"),
        ([ONE, ONE], "models[1].name must differ from the others, got 'one' again"),
        ([ONE | {"aliases": ["two"]}, ONE | {"name": "two"}],
         "models[1].name must differ from the others, got 'two' again"),
        ([ONE | {"aliases": ["x"]}, ONE | {"name": "two", "aliases": ["x"]}],
         "models[1].aliases must differ from the others, got 'x' again"),
        ([ONE | {"aliases": "x"}], "models[0].aliases must be a list, got 'x'"),
        ([], "models is missing"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_named(models: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    path = toml(tmp_path / "models.toml", *models)

    with pytest.raises(BadSetting) as refused:
        served(path)
    assert str(refused.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 1", ": models must be a list, got 1"),
        ("models = [1]", ": models[0] must be"),
        ("models = []", ": models must have at least 1 item"),
        ("[[model]]", ": model"),
        ("[[models", " is not valid TOML: "),
        (None, " cannot be read: No such file"),
    ],
)
def test_a_file_of_another_kind_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    if text is not None:
        path.write_text(text)

    with pytest.raises(BadSetting) as refused:
        served(str(path))
    assert str(refused.value).startswith(f"{path}{message}")


def test_several_models_are_not_set_beside_one() -> None:
    """Otherwise one of the two settings would be ignored silently."""
    for name in ("model", "revision", "fast_model", "fast_revision"):
        settings = Settings.read(["--models", "models.toml"], environ={f"BANDRANK_{name.upper()}": "sparse-w4"})
        with pytest.raises(BadSetting) as refused:
            settings.served_models()
        assert explain(refused.value) == f"BANDRANK_MODELS cannot be set beside BANDRANK_{name.upper()}"


def test_a_model_of_a_file_is_served_under_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A relative folder is looked up beside the file."""
    save_bi_encoder(tmp_path / "checkpoint")
    path = toml(tmp_path / "models.toml", {"name": "ours", "model": "checkpoint"})
    capsys.readouterr()

    assert main(["check", "--models", path, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^models +ours$", out, re.MULTILINE)
    assert f"{tmp_path / 'checkpoint'} (bi_encoder)" in out


def test_a_model_of_a_file_that_cannot_be_served_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the file, not a variable that nobody set."""
    path = toml(tmp_path / "models.toml", {"name": "ours", "model": "sparse-w4", "fast_model": "org/other"})
    capsys.readouterr()

    assert main(["check", "--models", path]) == 2
    assert capsys.readouterr().err.startswith(f"bandrank: {path}: fast_model of ours must be {FAST}, or not be set: ")
