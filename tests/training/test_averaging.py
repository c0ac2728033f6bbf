"""`average` and `export`: the models that they write, and what they refuse; and folders that no command writes over."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.models import tiny_bi_encoder, tiny_cross_encoder
from support.training import contents, saved, toml, values

from bandrank.models.fusion import Fusion
from bandrank.models.loading import load_model
from bandrank.models.quantised import linear_layers
from bandrank.models.scorer import Scorer
from bandrank_training.__main__ import main
from bandrank_training.models import build
from bandrank_training.recipe import ModelRecipe
from bandrank_training.tuning import calibrated


@pytest.mark.parametrize(("given", "shares"), [([], [1 / 3] * 3), (["--weights", "1", "0", "3"], [0.25, 0, 0.75])])
def test_weights_are_averaged(tmp_path: Path, given: list[str], shares: list[float]) -> None:
    """The mean is even unless --weights says otherwise, and it takes the fusion of the first model."""
    scorers = [tiny_cross_encoder(seed=seed) for seed in range(3)]
    models = [saved(tmp_path / str(seed), scorer, Fusion("mix-b", seed)) for seed, scorer in enumerate(scorers)]

    assert main(["average", str(tmp_path / "mean"), *models, *given]) == 0

    mean = load_model(str(tmp_path / "mean"))
    assert mean.fusion == Fusion("mix-b", 0)
    states = [scorer.state_dict() for scorer in scorers]
    for name, tensor in mean.scorer.state_dict().items():
        expected = sum(share * state[name] for share, state in zip(shares, states, strict=True))
        torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("other", "given", "message"),
    [
        (tiny_bi_encoder, [], "is a bi_encoder"),
        (lambda: tiny_cross_encoder(max_query_tokens=9), [], "differs from .* in max_query_tokens"),
        (tiny_cross_encoder, ["--weights", "1"], "1 of them for 2 models"),
        (tiny_cross_encoder, ["--weights", "0", "0"], "at least 0, and not all 0"),
        (tiny_cross_encoder, ["--weights", "nan", "1"], "at least 0, and not all 0"),
        (tiny_cross_encoder, ["--weights", "1e308", "1e308"], "at least 0, and not all 0"),
    ],
)
def test_what_cannot_be_averaged_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Callable[[], Scorer], given: list[str], message: str
) -> None:
    models = [saved(tmp_path / "a", tiny_cross_encoder()), saved(tmp_path / "b", other())]

    assert main(["average", str(tmp_path / "mean"), *models, *given]) == 2

    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "mean").exists()


def test_a_model_that_is_read_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first argument is the folder to write; a model that is named there by mistake must not be lost."""
    one, other = saved(tmp_path / "a", tiny_cross_encoder()), saved(tmp_path / "b", tiny_cross_encoder(seed=1))
    before = contents(tmp_path)

    assert main(["average", one, other]) == 2
    assert "is one model; average takes the folder to write, and then two models or more" in capsys.readouterr().err
    assert main(["average", one, other, one]) == 2
    assert main(["export", one, one]) == 2
    assert capsys.readouterr().err.count("is the folder of a model that is read; choose another") == 2

    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "command",
    [
        ["average", "OUT", "cross_encoder", "cross_encoder"],
        ["export", "cross_encoder", "OUT"],
        ["lexical", "cross_encoder", "groups.jsonl", "toy", "OUT"],
        ["align", "bi_encoder", "bi_encoder", "toy", "OUT"],
        ["fine-tune", "toy", "--start", "cross_encoder", "--out", "OUT"],
        ["train", "OUT.toml"],
    ],
    ids=lambda command: command[0],
)
def test_no_command_writes_over_another_model(
    toy: Path, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is named by mistake keeps its model."""
    out = saved(tmp_path / "other", tiny_cross_encoder(seed=1))
    (tmp_path / "other.toml").write_text(toml(values(toy, Path(out))), encoding="utf-8")
    before = contents(tmp_path)
    monkeypatch.chdir(toy)

    assert main([each.replace("OUT", out) for each in command]) == 2

    assert f"{out}, the folder to write, holds a model; choose another, or delete it" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_a_weight_that_float16_cannot_hold_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scorer = tiny_cross_encoder()
    name = next(iter(linear_layers(scorer))) + ".weight"
    with torch.no_grad():
        scorer.get_parameter(name)[0, 0] = 1e5
    one = saved(tmp_path / "a", scorer)

    assert main(["export", one, str(tmp_path / "b")]) == 2
    assert f"{name}: not finite, or too large for float16; name it in --int8" in capsys.readouterr().err
    assert not (tmp_path / "b" / "config.json").exists()
    assert main(["export", one, str(tmp_path / "b"), "--int8", name]) == 0


def test_a_part_of_no_matrix_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a slip of the pen, matrices would be written in float16, in twice the size."""
    one = saved(tmp_path / "a", tiny_cross_encoder())

    assert main(["export", one, str(tmp_path / "b"), "--int8", "embeddings.word", "embedings"]) == 2
    assert "--int8 embedings: no matrix has this in its name; there are " in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_layers_that_int8_leaves_in_float32_stay_so(tmp_path: Path) -> None:
    """Exact layers stay exact in a mean, after calibration and in further training; else int8 scores would change."""
    scorer = tiny_cross_encoder()
    scorer.exact_layers = frozenset(list(linear_layers(scorer))[:2])
    start = saved(tmp_path / "start", scorer)

    assert main(["average", str(tmp_path / "mean"), start, start]) == 0

    made = [calibrated(scorer, 1.0, 0.5), build(ModelRecipe(start), seed=1).scorer]
    assert {each.exact_layers for each in [load_model(str(tmp_path / "mean")).scorer, *made]} == {scorer.exact_layers}
