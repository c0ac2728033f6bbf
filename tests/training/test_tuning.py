"""What `export --tune` sets by dev groups: the weight of a fusion, and the numbers that make scores logits."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import save_bi_encoder, some_scores, tiny_bi_encoder, tiny_cross_encoder
from support.precomputing import tiny_colbert, tiny_deformer, tiny_mix_encoder, tiny_poly_encoder, tiny_virt
from support.scorers import loaded
from support.training import saved, train, write_toy

from bandrank.models.fusion import Fusion
from bandrank.models.loading import load_model
from bandrank.models.scorer import Scorer
from bandrank_training.__main__ import main
from bandrank_training.dev import DevSet
from bandrank_training.errors import BadInput
from bandrank_training.scoring import score_offline
from bandrank_training.tuning import calibrated, intercept, platt, tune


def mix_encoder() -> Scorer:
    """Returns a MixEncoder whose scores have a constant."""
    return tiny_mix_encoder(similarity="scaled_dot", bi_encoder_weight=5.0)


def test_relevant_ones_and_others_weigh_the_same() -> None:
    """The constant balances relevant and irrelevant candidates, however many there are of each."""
    scores = [12.0, 9.0, 15.0, 8.0, 11.0]
    constant = intercept(scores, [True, False, True, False, False])
    chances = [1 / (1 + math.exp(-score - constant)) for score in scores]

    assert (chances[0] + chances[2]) / 2 + (chances[1] + chances[3] + chances[4]) / 3 == pytest.approx(1.0)


@pytest.mark.parametrize("make", [tiny_cross_encoder, mix_encoder])
def test_tuned_scores_are_probabilities(tmp_path: Path, make: type[Scorer]) -> None:
    """Relevant candidates are a fifth of all but count as much as the others, and scores are only shifted."""
    dev = DevSet.read(write_toy(tmp_path)["dev"])
    model = loaded(make())
    before = dev.scores(score_offline(loaded(make())))

    tuned = tune(model, dev)
    scores = dev.scores(score_offline(tuned.model))

    relevant = torch.tensor([group.labels for group in dev.groups]) > 0
    chances = torch.tensor(scores).sigmoid()
    assert (chances[relevant].mean() + chances[~relevant].mean()).item() == pytest.approx(1.0, abs=2e-3)
    for row, old in zip(scores, before, strict=True):
        assert row == pytest.approx([score + tuned.shift for score in old], abs=1e-4)
    assert tuned.by_weight == {}


def test_the_best_weight_of_a_fusion_is_found(tmp_path: Path) -> None:
    """All weights are measured, the old one too; the exported model has the best one and ranks as it was measured."""
    paths = write_toy(tmp_path)
    dev = DevSet.read(paths["dev"])
    fast, accurate, out = tmp_path / "fast", tmp_path / "accurate", tmp_path / "out"
    saved(fast, tiny_bi_encoder())
    saved(accurate, tiny_cross_encoder(), Fusion(str(fast), 7.0))
    tuned = tune(load_model(str(accurate)), dev)

    assert main(["export", str(accurate), str(out), "--tune", str(paths["dev"])]) == 0

    exported = load_model(str(out))
    assert exported.fusion == tuned.model.fusion
    assert exported.fusion is not None
    assert {exported.fusion.weight, 7.0} <= tuned.by_weight.keys()
    best = max(tuned.by_weight.values())
    assert tuned.by_weight[exported.fusion.weight] == best
    assert dev.measure(score_offline(exported)) == pytest.approx(best, abs=0.02)  # float16
    assert len(set(tuned.by_weight.values())) > 1


def test_a_scorer_without_a_constant_is_told() -> None:
    with pytest.raises(BadInput, match="a mix_encoder has no constant to set; leave out --tune"):
        calibrated(tiny_mix_encoder(), 1.0, 1.0)


def test_a_logistic_regression_is_found_again() -> None:
    """Relevance is drawn by known chances, whose slope and constant are found; an inverted ranking is an error."""
    rng = np.random.default_rng(1)
    scores = rng.normal(30.0, 4.0, 20_000)
    relevant = rng.random(20_000) < 1 / (1 + np.exp(-(0.5 * scores - 15.0)))
    slope, constant = platt(scores.tolist(), relevant.tolist())

    assert slope == pytest.approx(0.5, rel=0.05)
    assert slope * 30.0 + constant == pytest.approx(0.0, abs=0.1)  # as many are relevant as are not
    with pytest.raises(BadInput, match="the relevant candidates have the lower scores"):
        platt((-scores).tolist(), relevant.tolist())
    assert math.isfinite(platt([1.0, 2.0, 3.0, 4.0], [False, False, True, True])[0])  # told apart without an error


@pytest.mark.parametrize("make", [tiny_colbert, tiny_bi_encoder, tiny_poly_encoder, tiny_virt, tiny_deformer])
def test_similarities_become_logits(make: type[Scorer]) -> None:
    """Each score is scaled and shifted, twice here, while stored representations stay valid."""
    before = make()
    scale = 1.0 if make is tiny_deformer else 0.25
    after = calibrated(calibrated(before, scale, 2.0), scale, 1.0)

    expected = [scale * (scale * score + 2.0) + 1.0 for score in some_scores(before)]
    assert some_scores(after) == pytest.approx(expected, abs=1e-4)
    if make is not tiny_deformer:
        sides = before.candidate_side(), after.candidate_side()
        assert sides[0].config == sides[1].config
        assert sides[0].weights.keys() == sides[1].weights.keys()


def test_a_colbert_is_exported_with_scores_that_differ(tmp_path: Path) -> None:
    """Without tuning, the sigmoids of a ColBERT's sums of MaxSim would all be 1."""
    paths = write_toy(tmp_path)
    save_bi_encoder(tmp_path / "bi_encoder")
    run = train(tmp_path, tmp_path / "run", "bi_encoder", model={"architecture": "colbert", "config": {"dim": 16}})
    dev = DevSet.read(paths["groups"])
    before = torch.tensor(dev.scores(score_offline(run.model)))
    assert (before.sigmoid() > 0.999).all()

    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--tune", str(paths["groups"])]) == 0

    after = torch.tensor(dev.scores(score_offline(load_model(str(tmp_path / "out")))))
    relevant = torch.tensor([group.labels for group in dev.groups]) > 0
    assert (after.sigmoid() < 0.999).all()
    assert after.sigmoid()[relevant].mean() > after.sigmoid()[~relevant].mean()
