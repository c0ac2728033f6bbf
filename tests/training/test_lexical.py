"""Lexical evidence for a scorer: how rare a piece is, and the gate that is fitted."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.models import tiny_bi_encoder, tiny_cross_encoder
from support.precomputing import tiny_mix_encoder
from support.scorers import loaded
from support.tokenizer import CLS_ID, SEP_ID, UNK_ID, tiny_tokenizer
from support.training import contents, saved, toy_documents, train, write_toy

from bandrank.models.loading import load_model
from bandrank.models.scorer import Scorer
from bandrank.models.texts import TextEncoder
from bandrank_training.__main__ import main
from bandrank_training.dev import DevSet
from bandrank_training.errors import BadInput
from bandrank_training.frequencies import rarity
from bandrank_training.groups import read_groups
from bandrank_training.lexical import Asked, fit, with_lexical
from bandrank_training.losses import LossRecipe, contrastive
from bandrank_training.scoring import score_offline


def test_rarity_is_lucenes() -> None:
    """The weight of a piece depends on the number of texts that have it; special tokens weigh nothing."""
    texts = ["he is he", "she is", "they were"]
    tokenizer = tiny_tokenizer()
    idf, average = rarity(texts, TextEncoder(tokenizer, tiny_cross_encoder()))

    counts = Counter({"he": 1, "is": 2, "man": 0})
    for word, count in counts.items():
        expected = math.log(1 + (3 - count + 0.5) / (count + 0.5))
        assert idf[tokenizer.token_to_id(word)].item() == pytest.approx(expected)
    assert idf[[CLS_ID, SEP_ID, UNK_ID]].tolist()[1:] == [0, 0]
    assert average == pytest.approx(7 / 3)
    with pytest.raises(BadInput, match="no document to count"):
        rarity([], TextEncoder(tokenizer, tiny_cross_encoder()))


def with_evidence(folder: Path, scorer: Scorer) -> tuple[Asked, DevSet]:
    """Returns the evidence for toy groups, whose relevant candidates share a word with the query, and the groups."""
    dev = DevSet.read(write_toy(folder)["groups"])
    model = loaded(scorer)
    frequencies = rarity(toy_documents().values(), TextEncoder(model.tokenizer, model.scorer))
    return Asked.of(with_lexical(model, *frequencies), dev), dev


@pytest.mark.parametrize("make", [tiny_cross_encoder, tiny_mix_encoder])
def test_a_gate_is_fitted(tmp_path: Path, make: Callable[[], Scorer]) -> None:
    """The gate ranks better than none and minimises the loss, and relevant candidates weigh as much as the others."""
    asked, dev = with_evidence(tmp_path, make())
    gate = fit(asked)

    none = torch.zeros_like(gate)
    assert dev.measure_scores(asked.rows(gate)) > dev.measure_scores(asked.rows(none)) + 0.1

    def loss(changed: torch.Tensor) -> float:
        """Returns the loss of the gated scores at the scale that makes it least."""

        def times(worth: torch.Tensor) -> float:
            ranked = contrastive(asked.gated(worth * changed, worth=worth), LossRecipe("contrastive"))
            return (ranked + 1e-3 * ((worth * changed[:, :2]).square().sum() + (worth - 1).square())).item()

        return min(map(times, torch.linspace(0.05, 4, 400)))

    least = loss(gate)
    for place in range(6):
        for change in (-0.3, 0.3):
            moved = gate.clone()
            moved[place // 2, place % 2] += change
            assert loss(moved) > least - 1e-4
    half = fit(asked, 0.5)
    torch.testing.assert_close(half[:, :2], 0.5 * gate[:, :2])
    relevant, mask = asked.scored.labels > 0, asked.scored.mask
    for each in (gate, half):
        chances = asked.gated(each).scores.sigmoid()
        both = chances[mask & relevant].mean() + chances[mask & ~relevant].mean()
        assert both.item() == pytest.approx(1.0, abs=0.1)


def command_of(paths: dict[str, Path], model: Path, out: Path) -> list[str]:
    return ["lexical", *map(str, (model, paths["groups"], paths["collection"], out))]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`lexical` writes a checkpoint that measures as printed and can be trained further."""
    paths = write_toy(tmp_path)
    saved(tmp_path / "model", tiny_cross_encoder())

    command = command_of(paths, tmp_path / "model", tmp_path / "out")
    assert main([*command, "--without", "goverment"]) == 2
    assert "--without: no group is of 'goverment'" in capsys.readouterr().err
    assert main(command) == 0

    printed = capsys.readouterr().out
    dev = DevSet.read(paths["groups"])
    measures = [dev.measure(score_offline(load_model(str(tmp_path / name)))) for name in ("model", "out")]
    assert f"nDCG@10 {measures[0]:.4f}, with lexical evidence {measures[1]:.4f}" in printed
    run = train(tmp_path, tmp_path / "run", "out", optimiser={"steps": 2})
    before, after = (load_model(str(tmp_path / name)).scorer.lexical for name in ("out", "run"))
    assert not torch.equal(before.gate, after.gate)
    assert torch.equal(before.idf, after.idf)
    assert run.progress.step == 2


def test_the_model_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_toy(tmp_path)
    saved(tmp_path / "model", tiny_cross_encoder())
    before = contents(tmp_path / "model")

    assert main(command_of(paths, tmp_path / "model", tmp_path / "model")) == 2

    assert "is the folder of a model that is read; choose another" in capsys.readouterr().err
    assert contents(tmp_path / "model") == before


@pytest.mark.parametrize("strength", ["nan", "inf", "-1"])
def test_a_strength_without_a_sense_is_told(strength: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lexical", "model", "groups", "collection", "out", f"--strength={strength}"])
    assert "--strength: must be at least 0 and finite" in capsys.readouterr().err


def test_what_gets_no_evidence_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only cross-encoders and MixEncoders take lexical evidence, and some group must be left to fit to."""
    with pytest.raises(BadInput, match="lexical evidence is for a cross_encoder or a mix_encoder, not a bi_encoder"):
        with_lexical(loaded(tiny_bi_encoder()), torch.zeros(1), 9.0)
    paths = write_toy(tmp_path)
    saved(tmp_path / "model", tiny_cross_encoder())
    (area,) = {group.area for group in read_groups(paths["groups"])}
    command = command_of(paths, tmp_path / "model", tmp_path / "out")

    assert main([*command, "--without", area]) == 2
    assert "no group is left to fit to" in capsys.readouterr().err
