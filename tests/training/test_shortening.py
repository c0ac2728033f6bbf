"""Starts with some layers of a trained model, or with the words of another."""

from pathlib import Path

import pytest
import torch
from support.models import tiny_cross_encoder
from support.training import saved

from bandrank_training.models import build
from bandrank_training.recipe import BadRecipe, ModelRecipe

WORDS = "encoder.embeddings.word.weight"
SPARSE = {"pattern": {"window": 4, "query_to_cls": False, "query_to_candidate": False}}


def test_layers_of_the_start_are_kept_in_the_order_given(tmp_path: Path) -> None:
    start = tiny_cross_encoder(num_layers=4)
    recipe = ModelRecipe(saved(tmp_path / "start", start), layers=(3, 0, 3), config=SPARSE)
    made = build(recipe, seed=1).scorer

    assert made.config.encoder.num_layers == len(made.encoder.layers) == 3
    assert made.config.pattern.window == 4
    before, after = start.state_dict(), made.state_dict()
    for name, weight in after.items():
        _, _, rest = name.partition("encoder.layers.")
        number, _, part = rest.partition(".")
        of = f"encoder.layers.{[3, 0, 3][int(number)]}.{part}" if rest else name
        assert torch.equal(weight, before[of]), name
    saved(tmp_path / "made", made)  # no layers share memory


def test_a_new_architecture_starts_from_these_layers(tmp_path: Path) -> None:
    start = tiny_cross_encoder(num_layers=3)
    made = build(ModelRecipe(saved(tmp_path / "start", start), "bi_encoder", layers=(2,)), seed=1).scorer

    (layer,) = made.encoder.layers
    assert torch.equal(layer.up.weight, start.encoder.layers[2].up.weight)


def test_the_words_of_another_model(tmp_path: Path) -> None:
    start, other = tiny_cross_encoder(), tiny_cross_encoder(seed=1)
    names = [saved(tmp_path / name, each) for name, each in (("start", start), ("other", other))]
    made = build(ModelRecipe(names[0], words=names[1]), seed=1).scorer.state_dict()

    assert torch.equal(made.pop(WORDS), other.state_dict()[WORDS])
    assert all(torch.equal(weight, start.state_dict()[name]) for name, weight in made.items())


@pytest.mark.parametrize("layers", [(0, 2), (-1,)])
def test_layers_that_are_not_there_are_told(tmp_path: Path, layers: tuple[int, ...]) -> None:
    start = saved(tmp_path / "start", tiny_cross_encoder())

    with pytest.raises(BadRecipe, match=rf"^layers: .*start has layers 0 to 1, but no layer {layers[-1]}$"):
        build(ModelRecipe(start, layers=layers), seed=1)


def test_layers_of_different_windows_cannot_be_left_out(toy: Path) -> None:
    with pytest.raises(BadRecipe, match="differ in their windows"):
        build(ModelRecipe(str(toy / "sequence_cross_encoder"), layers=(0,)), seed=1)


def test_words_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    names = [saved(tmp_path / name, tiny_cross_encoder()) for name in ("start", "other")]
    file = tmp_path / "other" / "tokenizer.json"
    written = file.read_text(encoding="utf-8")
    assert '"before"' in written
    file.write_text(written.replace('"before"', '"behind"'), encoding="utf-8")

    with pytest.raises(BadRecipe, match="other has not the words of "):
        build(ModelRecipe(names[0], words=names[1]), seed=1)
